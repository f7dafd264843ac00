"""The parameters of requests and responses that a model makes.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

from typing import Any, Union

from .errors import TritonModelException

Parameters = dict[str, Union[bool, int, str]]


def checked_parameters(parameters: Any) -> Parameters:
    """`parameters` as they are sent; {} for None. Raises TritonModelException."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)
