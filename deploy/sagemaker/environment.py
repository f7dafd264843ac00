"""The environment variables of the model's container, checked by the server's own rules before any call.

Source: docs/spec/sagemaker.md sections A1 and B1; the server reads these names and values.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from adapters.sagemaker.settings import (
    BATCH,
    BIND_TO_PORT,
    EFFECTIVE_VARIABLES,
    MULTI_MODEL,
    PREFIX,
    SAFE_PORT_RANGE,
    WITHOUT_EFFECT,
)
from app.settings.option import BadOption
from app.settings.reading import read_settings
from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.kind import Kind

_MOST_VARIABLES = 100
_MOST_BYTES = 1024
_MOST_BYTES_TOGETHER = 32 << 10
# The platform sets these itself.
_OF_THE_PLATFORM = {
    MULTI_MODEL: "it is set for --kind multi-model",
    BATCH: "it is set for --kind batch",
    BIND_TO_PORT: "it is set if containers share a host",
    SAFE_PORT_RANGE: "it is set if containers share a host",
}
# Only an asynchronous endpoint accepts bodies of up to 1 GiB and calls of up to an hour.
_ASYNC = {"SAGEMAKER_MAX_REQUEST_SIZE": str(1 << 30), "SAGEMAKER_MODEL_SERVER_TIMEOUT": "3600"}


def container_environment(kind: Kind, given: Mapping[str, str]) -> dict[str, str]:
    """The variables for the container of an endpoint: `given`, and those that its kind needs.

    Raises BadSettings for an unknown variable, for a value that the server would refuse, and for too many variables.
    """
    found = {**(_ASYNC if kind is Kind.ASYNC else {}), **given}
    check_names(found)
    _check_values(found)
    _check_sizes(found)
    return found


def check_names(given: Mapping[str, str]) -> None:
    """Raise BadSettings for a variable with the platform's prefix that nobody reads or that the platform sets itself.

    The server's settings check variables with the server's prefix.
    """
    known = (*EFFECTIVE_VARIABLES, *WITHOUT_EFFECT)
    for name in given:
        if name in _OF_THE_PLATFORM:
            raise BadSettings(f"the platform sets the variable {name} itself: {_OF_THE_PLATFORM[name]}")
        if name.startswith(PREFIX) and name not in known:
            # Without the prefix, which makes all names similar.
            ends = {each.removeprefix(PREFIX): each for each in known}
            nearest = difflib.get_close_matches(name.removeprefix(PREFIX), ends, n=1)
            raise BadSettings(
                f"unknown variable {name}" + (f"; did you mean {ends[nearest[0]]}?" if nearest else ""),
                hint="docs/sagemaker.md lists the variables that the server reads",
            )


def _check_values(given: Mapping[str, str]) -> None:
    """Check the values by the server's settings, in multi-model mode because that needs no model on the disk."""
    try:
        read_settings([], {**given, MULTI_MODEL: "true"})
    except BadOption as error:
        raise BadSettings(f"the server would not start with these variables: {error}") from None


def _check_sizes(given: Mapping[str, str]) -> None:
    if len(given) > _MOST_VARIABLES:
        raise BadSettings(f"{len(given)} variables; a container may have at most {_MOST_VARIABLES}")
    for name, value in given.items():
        if max(len(name.encode()), len(value.encode())) > _MOST_BYTES:
            raise BadSettings(f"the variable {name} has more than {_MOST_BYTES} bytes in its name or its value")
    together = sum(len(name.encode()) + len(value.encode()) for name, value in given.items())
    if together > _MOST_BYTES_TOGETHER:
        raise BadSettings(f"the variables have {together} bytes in total; at most {_MOST_BYTES_TOGETHER} are allowed")
