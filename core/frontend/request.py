"""What a request asks for, in every protocol: its model and version, the parameters that mean something in the v2
protocol and those that are the model's own, the headers that it forwards, the front end's part of its trace,
and the classes that it wants of an output.

Source: docs/spec/http.md section 3 ("Version text errors"), section 4 (`parameters`) and section 6 (forwarded headers,
classification); docs/spec/trace-and-log.md sections 3 and 4; docs/spec/sagemaker.md sections B1 and B2;
docs/spec/vertex.md section B2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from trident.core.borders import guarded
from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import Engine, ServedModel
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoading, ModelNotReady, ServerError
from trident.core.frontend.access import HEADER
from trident.core.frontend.bridge import Bridge
from trident.core.inference.request import InferenceRequest, Parameter, RequestTrace
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import Array, bytes_array, element_count
from trident.core.lifecycle.state import Phase
from trident.core.memo import Memo
from trident.core.observability.tracing.trace import parse_traceparent

_SHOWN = 10


class DefaultModel:
    """`configured` is the name given at start, "" for the only model. `cure` is the hint if there are several."""

    def __init__(self, engine: Engine, bridge: Bridge, name: str, cure: str) -> None:
        self._engine = engine
        self._bridge = bridge
        self.configured = name
        self._cure = cure
        self._only = ""
        # A model that served at the last look, if none is named and the only one is not known.
        self._seen = ""

    def find(self, version: int = -1) -> ServedModel:
        """The model's `version`, -1 for the latest. Raises ModelNotReady without a model, ConfigInvalid if there are
        several, and the engine's lookup errors.

        The only model is looked for once, and again after it was unloaded.
        """
        name = self.configured or self._only
        if name:
            try:
                return self._engine.model(name, version)
            except ServerError:
                if self.configured:
                    self._refuse_while_loading()
                    raise
                if self._serves(name):
                    raise
        return self._engine.model(self._only_name(), version)

    def is_ready(self) -> bool:
        """Whether the named model serves, or, without a name, any model."""
        name = self.configured or self._only or self._seen
        if name and self._serves(name):
            return True
        if self.configured:
            return False
        # `run_long`: the threads of `run` may all be busy with large bodies, and a probe's time is short.
        index = self._bridge.run_long(self._engine.repository_index, True)
        # Remembered: to ask an engine in another process takes as long as that is busy, and front ends know the model.
        self._seen = index[0].name if index else ""
        return bool(index)

    def _serves(self, name: str) -> bool:
        try:
            self._engine.model(name)
        except ServerError:
            return False
        return True

    def _refuse_while_loading(self) -> None:
        if self._engine.phase().name in (Phase.STARTING, Phase.LOADING):
            raise _loading()

    def _only_name(self) -> str:
        # While models load, the first one that is ready would look like the only one.
        self._refuse_while_loading()
        was_down = self._engine.phase().name is Phase.ENGINE_DOWN
        index = self._bridge.run(self._engine.repository_index, True)
        names = sorted({entry.name for entry in index})
        if was_down:  # the index is that of an engine that starts again, and has not said yet how far it is
            raise _loading()
        if not names:
            raise ModelNotReady("no model is loaded", hint="the log says why, and so does the answer to a health probe")
        if len(names) > 1:
            listed = ", ".join(names[:_SHOWN]) + (" …" if names[_SHOWN:] else "")
            raise ConfigInvalid(f"there are several models: {listed}", hint=self._cure)
        self._only = names[0]
        return self._only


def _loading() -> ModelLoading:
    return ModelLoading("the models are still being loaded", hint="wait until the server is ready")


# --- the version

LATEST: Final = -1
_LARGEST: Final = 2**63 - 1
_DIGITS_OF_LARGEST: Final = 19


def version_number(text: str) -> int:
    """The version that `text` names, LATEST for empty text. Raises InvalidRequest with Triton's texts."""
    if not text:
        return LATEST
    # The length is checked first: converting a very long text takes long, and a client could send many.
    significant = text.lstrip("0")
    if (
        not (text.isascii() and text.isdigit())
        or len(significant) > _DIGITS_OF_LARGEST
        or int(significant or "0") > _LARGEST
    ):
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if not significant:
        raise InvalidRequest(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return int(significant)


# --- parameters

NON_STRING = "attempt to access JSON non-string as string"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
_MAX_RANK = 64  # numpy's
RESERVED_PREFIX = "triton_"
RESERVED_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)


def set_parameter(request: InferenceRequest, key: str, value: Parameter) -> None:
    """Give the model a parameter of its own."""
    if request.parameters is None:
        request.parameters = {}
    request.parameters[key] = value


def json_parameter(key: str, value: Any) -> Parameter:
    """Return the JSON value of a model's own parameter. Raises InvalidRequest unless a parameter can hold it."""
    if not isinstance(value, str | int | float):
        raise InvalidRequest(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    return value


def forward_header(request: InferenceRequest, name: str, value: str) -> None:
    """Make a request header a string parameter of the request, under the name received. Raises InvalidRequest."""
    if name in RESERVED_PARAMETERS or name.startswith(RESERVED_PREFIX):
        raise InvalidRequest(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    set_parameter(request, name, value)


def unable(field: str, reason: str) -> InvalidRequest:
    """The error for a field of the wrong JSON type."""
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
        raise unable(field, _NON_BOOLEAN)
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
    """The names of the events of one protocol."""

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

    Returns normally: the answer does not depend on it.
    """
    events = _events(names.received, received), _events(names.sent, sent)
    guarded(partial(engine.trace_answered, number, *events), "telling the engine of an answer")


def _events(names: tuple[str, str], times: Span) -> list[tuple[str, int]]:
    return [(name, ns) for name, ns in zip(names, times, strict=True) if ns]


# --- classification: an output is replaced by its largest values with their indices and labels

LARGEST_ITEM = 1_000_000
_UNSUPPORTED = frozenset({"BOOL", "BYTES", "FP16", "BF16"})


def classify(output: OutputTensor, k: int, max_batch_size: int, labels: Sequence[str]) -> OutputTensor:
    """The `k` largest values of each batch item, in descending order, as BYTES `value:index[:label]`.

    The shape is [min(k, elements)], after the batch dimension if the model batches. Equal values are in the order of
    their indices; NaN is last. Raises InvalidRequest for an output that cannot be ranked.
    """
    if output.datatype in _UNSUPPORTED:
        raise InvalidRequest(f"class result not available for output due to unsupported type '{output.datatype}'")
    batch = output.shape[:1] if max_batch_size > 0 else ()
    elements = element_count(output.shape[len(batch) :])
    if elements > LARGEST_ITEM:
        raise InvalidRequest("classification output tensor too large")
    count = min(k, elements)
    rows = output.array.reshape(element_count(batch), elements)
    classes = [text for row in rows for text in _row_classes(row, count, labels)]
    shape = (*batch, count)
    return OutputTensor(output.name, "BYTES", shape, bytes_array(classes, shape))


def classified(output: OutputTensor, classes: int, spec: ModelSpec) -> OutputTensor:
    """The output itself if `classes` is 0, else its `classes` largest values. Raises InvalidRequest."""
    if not classes:
        return output
    return classify(output, classes, spec.max_batch_size, spec.outputs[output.name].labels)


def top_indices(values: Array, k: int) -> Array:
    """The indices of the `k` largest of `values`, one-dimensional, largest first; ties by index, NaN last."""
    if k == 0:
        return np.empty(0, dtype=np.intp)
    # Ascending in these keys is descending in the values. Inverting an integer's bits cannot overflow, negating it can.
    keys = -values if values.dtype.kind == "f" else ~values
    bound = np.partition(keys, k - 1)[k - 1]
    if bound != bound:  # NaN is among the k largest: there are fewer than k numbers
        return np.argsort(keys, kind="stable")[:k]
    # Only values that may be among the k largest are sorted, which is fast; all ties stay, which keeps the order right.
    candidates = np.flatnonzero(keys <= bound)
    return candidates[np.argsort(keys[candidates], kind="stable")[:k]]


def _row_classes(row: Array, k: int, labels: Sequence[str]) -> list[bytes]:
    indices = top_indices(row, k)
    values = row[indices].tolist()
    texts = map("%f".__mod__, values) if row.dtype.kind == "f" else map(str, values)
    return [
        f"{text}:{index}{_suffix(labels, index)}".encode() for text, index in zip(texts, indices.tolist(), strict=True)
    ]


def _suffix(labels: Sequence[str], index: int) -> str:
    return f":{labels[index]}" if index < len(labels) and labels[index] else ""
