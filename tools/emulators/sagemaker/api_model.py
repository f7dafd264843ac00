"""The platform's API by botocore's model: the parameters in a settings file, and what is wrong with those of a call.

A settings file is a JSON object of operations, each with parameters by the API's own names:

    {"CreateEndpointConfig": {"ProductionVariants": [{"EnableSSMAccess": true}]}}

They are laid over those that a command makes, so that a new member of the API needs no option.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from trident.core.errors import ConfigInvalid

NO_VALUE = "unknown value"
# botocore's model has these values only in its documentation.
_FREQUENCY = "MetricPublishFrequencyInSeconds"
FREQUENCIES_S = (10, 30, 60, 120, 180, 240, 300)
Settings = Mapping[str, Any]


def read_settings_file(path: Path, operations: Collection[str]) -> dict[str, Any]:
    """The parameters by operation. Raises ConfigInvalid for another form, and for an operation not in `operations`."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"the settings file {path} cannot be read: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(each, dict) for each in document.values()):
        raise ConfigInvalid(
            f"the settings file {path} is not an object of operations", hint='{"CreateEndpointConfig": {…}, …}'
        )
    for name in document:
        if name not in operations:
            raise ConfigInvalid(f"the settings file {path} names '{name}'", hint=f"it takes {', '.join(operations)}")
    return document


def merged(base: Any, over: Any) -> Any:
    """`over` laid on `base`: objects member by member, lists of objects entry by entry; anything else replaces it."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{name: merged(base.get(name), value) for name, value in over.items()}}
    if isinstance(base, list) and isinstance(over, list) and all(isinstance(each, dict) for each in (*base, *over)):
        both = [merged(old, new) for old, new in zip(base, over, strict=False)]
        return [*both, *base[len(over) :], *over[len(base) :]]
    return over


def problems(service: str, operation: str, parameters: Mapping[str, Any]) -> list[str]:
    """The problems that botocore finds, and those that it leaves to the service: unknown values, patterns, sizes.

    A value of a subclass of str stands for one that is not known yet.
    """
    shape = service_model(service).operation_model(operation).input_shape
    # For botocore an operation without parameters has no shape.
    if shape is None:
        return ["takes no parameters"] if parameters else []
    report = ParamValidator().validate(parameters, shape).generate_report()
    return report.splitlines() or list(_finer(parameters, shape, ""))


@functools.cache
def service_model(service: str) -> Any:
    """botocore's model of an API. Raises ConfigInvalid if this installation lacks it, as those of our images do."""
    try:
        return ServiceModel(Loader().load_service_model(service, "service-2"), service_name=service)
    except UnknownServiceError:
        raise ConfigInvalid(
            f"the SDK here does not have the API of {service}", hint="pip install --force-reinstall botocore"
        ) from None


def _finer(value: Any, shape: Any, at: str) -> Iterator[str]:
    """The problems of a value whose types and members are valid."""
    if isinstance(value, str) and type(value) is not str:
        return
    if shape.type_name == "structure":
        for name, member in value.items():
            within = f"{at}.{name}" if at else name
            yield from _finer(member, shape.members[name], within)
            if name == _FREQUENCY and member not in FREQUENCIES_S:
                yield f"{within} is {member}; it takes {', '.join(map(str, FREQUENCIES_S))}"
    elif shape.type_name == "list":
        yield from _bounds(len(value), shape.metadata, at, "entries")
        for number, member in enumerate(value):
            yield from _finer(member, shape.member, f"{at}[{number}]")
    elif shape.type_name == "map":
        yield from _bounds(len(value), shape.metadata, at, "entries")
        for name, member in value.items():
            yield from _finer(name, shape.key, f"{at}, the key '{name}'")
            yield from _finer(member, shape.value, f"{at}.{name}")
    elif shape.type_name == "string":
        if shape.enum and value not in shape.enum:
            nearest = difflib.get_close_matches(value, shape.enum, n=1)
            meant = f"did you mean {nearest[0]}?" if nearest else f"expected one of {', '.join(shape.enum[:12])}"
            yield f"{at}: {NO_VALUE} '{value}'; {meant}"
        yield from _bounds(len(value), shape.metadata, at, "characters")
        pattern = _compiled(shape.metadata.get("pattern", ""))
        if pattern is not None and not pattern.fullmatch(value):
            yield f"{at} is '{value}', which does not match the pattern {pattern.pattern}"
    elif shape.type_name in ("integer", "long", "float", "double"):
        yield from _bounds(value, shape.metadata, at, "")
    elif shape.type_name == "blob":
        yield from _bounds(len(value), shape.metadata, at, "bytes")


def _bounds(value: float, metadata: Mapping[str, Any], at: str, unit: str) -> Iterator[str]:
    low, high = metadata.get("min"), metadata.get("max")
    if (low is not None and value < low) or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
        yield f"{at} has {value} {unit}; it takes {span}" if unit else f"{at} is {value}; it takes {span}"


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None for a Java pattern that Python cannot compile, which is left to the service."""
    try:
        return re.compile(pattern, re.DOTALL) if pattern else None
    except re.error:
        return None
