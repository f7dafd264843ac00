"""Checks the parameters of a plan against botocore's models of the APIs, without network and credentials."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from deploy.sagemaker.answer import Answer
from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.plan import Call, Plan, calls_of

_NO_VALUE = "which is not a known value"


def check_plan(plan: Plan) -> None:
    """Raise BadSettings with every problem of every call."""
    found = [f"{call.name}: {problem}" for call in calls_of(plan) for problem in problems(call)]
    if found:
        is_unknown = any(_NO_VALUE in problem for problem in found)
        hint = "a newer SDK may know it: pip install --upgrade boto3" if is_unknown else ""
        raise BadSettings("\n".join(dict.fromkeys(found)), hint=hint)


def problems(call: Call) -> list[str]:
    """The problems that botocore finds, and those that it leaves to the service: unknown values, patterns, sizes."""
    shape = service_model(call.service).operation_model(call.operation).input_shape
    # For botocore an operation without parameters has no shape.
    if shape is None:
        return ["takes no parameters"] if call.parameters else []
    report = ParamValidator().validate(call.parameters, shape).generate_report()
    return report.splitlines() or list(_finer(call.parameters, shape, ""))


@functools.cache
def service_model(service: str) -> Any:
    """botocore's model of an API. Raises botocore's UnknownServiceError."""
    return ServiceModel(Loader().load_service_model(service, "service-2"), service_name=service)


def _finer(value: Any, shape: Any, at: str) -> Iterator[str]:
    """The problems of a value whose types and members are valid."""
    if isinstance(value, Answer):
        return
    if shape.type_name == "structure":
        for name, member in value.items():
            yield from _finer(member, shape.members[name], f"{at}.{name}" if at else name)
    elif shape.type_name == "list":
        yield from _bounds(len(value), shape.metadata, at, "entries")
        for number, member in enumerate(value):
            yield from _finer(member, shape.member, f"{at}[{number}]")
    elif shape.type_name == "map":
        yield from _map_problems(value, shape, at)
    elif shape.type_name == "string":
        yield from _text_problems(value, shape, at)
    elif shape.type_name in ("integer", "long", "float", "double"):
        yield from _bounds(value, shape.metadata, at, "")
    elif shape.type_name == "blob":
        yield from _bounds(len(value), shape.metadata, at, "bytes")


def _map_problems(value: Mapping[str, Any], shape: Any, at: str) -> Iterator[str]:
    yield from _bounds(len(value), shape.metadata, at, "entries")
    for name, member in value.items():
        yield from _finer(name, shape.key, f"{at}, the key '{name}'")
        yield from _finer(member, shape.value, f"{at}.{name}")


def _text_problems(value: str, shape: Any, at: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        nearest = difflib.get_close_matches(value, shape.enum, n=1)
        meant = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(shape.enum[:12])}"
        yield f"{at} is '{value}', {_NO_VALUE}; {meant}"
    yield from _bounds(len(value), shape.metadata, at, "characters")
    pattern = _compiled(shape.metadata.get("pattern", ""))
    if pattern is not None and not pattern.fullmatch(value):
        yield f"{at} is '{value}', which does not match the pattern {pattern.pattern}"


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
