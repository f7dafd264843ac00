"""The fields of a request, on both builds: a compiled class has no `__slots__`."""

from __future__ import annotations

from trident.core.inference.request import InferenceRequest

_DERIVED = ("has_many_strings", "log_prefix", "may_be_passed", "nbytes")

FIELDS = [
    name
    for name in dir(InferenceRequest)
    if not name.startswith("_") and name not in _DERIVED and not callable(getattr(InferenceRequest, name))
]
