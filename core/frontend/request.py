"""Requests in every protocol: the parameters that mean something in the v2 protocol and
those that are the model's own, the headers that it forwards, and the front end's part of its trace.

Source: docs/spec/http.md section 3 ("Version text errors"), section 4 (`parameters`) and section 6 (forwarded headers);
docs/spec/trace-and-log.md sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from trident.core.borders import guarded
from trident.core.engine.protocol import Engine
from trident.core.errors import ConfigInvalid, InvalidRequest
from trident.core.frontend.access import HEADER
from trident.core.inference.request import InferenceRequest, Parameter, RequestTrace
from trident.core.memo import Memo
from trident.core.observability.tracing.trace import parse_traceparent

# --- parameters

NON_STRING = "attempt to access JSON non-string as string"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
_MAX_RANK = 64  # numpy's
RESERVED_PREFIX = "triton_"
RESERVED_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)


def set_parameter(request: InferenceRequest, key: str, value: Parameter) -> None:
    if request.parameters is None:
        request.parameters = {}
    request.parameters[key] = value


def json_parameter(key: str, value: Any) -> Parameter:
    """Return the JSON value of a model's own parameter; an integer beyond 64 signed bits is a double, as in Triton.
    Raises InvalidRequest unless a parameter can hold it."""
    if type(value) is int and not -1 << 63 <= value < 1 << 63:
        return float(value)
    if not isinstance(value, str | int | float):
        raise InvalidRequest(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    return value


def forward_header(request: InferenceRequest, name: str, value: str) -> None:
    """Make a request header a string parameter of the request, under the name received. Raises InvalidRequest."""
    if name in RESERVED_PARAMETERS or name.startswith(RESERVED_PREFIX):
        raise InvalidRequest(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    set_parameter(request, name, value)


def unable(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Unable to parse '{field}': {reason}")


def check_rank(rank: int) -> None:
    """Raise InvalidRequest for more dimensions than any model has: their product alone would take seconds."""
    if rank > _MAX_RANK:
        raise unable("shape", f"{rank} dimensions are more than the maximum of {_MAX_RANK}")


def unsigned(field: str, value: Any) -> int:
    """`value` if it is a number of 64 bits from 0. Raises InvalidRequest."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise unable(field, NON_UNSIGNED)
    return value


def string(field: str, value: Any) -> str:
    """`value` if it is a string. Raises InvalidRequest."""
    if type(value) is not str:
        raise unable(field, NON_STRING)
    return value


def boolean(field: str, value: Any) -> bool:
    """`value` if it is a boolean. Raises InvalidRequest."""
    if type(value) is not bool:
        raise unable(field, NON_BOOLEAN)
    return value


# A pattern has the syntax of RE2, as in Triton, whose time is linear in a name's length: names are the clients'.
# Source: docs/spec/server-options.md section 2, `http-header-forward-pattern` and `grpc-header-forward-pattern`.


_LONGEST_KNOWN = 64


class HeaderPattern:
    """Matches a part of a name, ignoring case. If it `hides_token`, the header with the bearer token does not match: it
    is for the server, not for a model."""

    def __init__(self, search: Callable[[str], object], *, hides_token: bool) -> None:
        self._search = search
        self._hidden = HEADER if hides_token else ""
        self._known: Memo[str, bool] = Memo(1024)

    def matches(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._search(name) is not None and name.lower() != self._hidden
            if len(name) <= _LONGEST_KNOWN:
                self._known[name] = known
        return known


def header_pattern(option: str, pattern: str, *, hides_token: bool = False) -> HeaderPattern | None:
    """The value of the option; None if it is empty. Raises ConfigInvalid that names the option."""
    if not pattern:
        return None
    import re2  # for servers with a pattern only

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    try:
        return HeaderPattern(re2.compile(pattern, options).search, hides_token=hides_token)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise ConfigInvalid(
            f"--{option} is not a regular expression: '{pattern}': {reason}",
            hint="the syntax is RE2's: https://github.com/google/re2/wiki/Syntax",
        ) from error


# --- traces: the context of the client, and when a request was received and answered


# Nanoseconds of the monotonic clock at the start and at the end; 0 for a time that was not noted.
Span = tuple[int, int]
NOT_NOTED: Span = (0, 0)
# Characters: what every program must pass on; longer ones are left out.
_LONGEST_STATE = 512


class EventNames(NamedTuple):
    received: tuple[str, str]
    sent: tuple[str, str]


HTTP = EventNames(("HTTP_RECV_START", "HTTP_RECV_END"), ("HTTP_SEND_START", "HTTP_SEND_END"))
GRPC = EventNames(("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"), ("GRPC_SEND_START", "GRPC_SEND_END"))


def client_trace(traceparent: str | None, tracestate: str | None) -> RequestTrace | None:
    """The trace that the client of a request has begun; None without a valid one."""
    if traceparent is None or parse_traceparent(traceparent) is None:
        return None
    state = tracestate or ""
    return RequestTrace(traceparent=traceparent.strip(), tracestate=state if len(state) <= _LONGEST_STATE else "")


def end_trace(engine: Engine, number: int, names: EventNames, received: Span, sent: Span = NOT_NOTED) -> None:
    """Report that the request of trace `number` was answered. `sent` is NOT_NOTED if its client has gone.

    Never raises: the answer does not depend on it.
    """
    events = _events(names.received, received), _events(names.sent, sent)
    guarded(partial(engine.trace_answered, number, *events), "telling the engine of an answer")


def _events(names: tuple[str, str], times: Span) -> list[tuple[str, int]]:
    return [(name, ns) for name, ns in zip(names, times, strict=True) if ns]
