"""The parameters of an infer request that mean something in the v2 protocol, and those that are the model's own.

Source: docs/spec/http.md section 4 (`parameters`) and section 6 (forwarded headers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from trident.core.buffer_pool import BufferPool
from trident.core.engine.protocol import Engine, ServedModel
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoading, ModelNotReady, ServerError
from trident.core.frontend.access import HEADER
from trident.core.frontend.bridge import Bridge
from trident.core.inference.request import InferenceRequest, Parameter
from trident.core.lifecycle.state import Phase
from trident.core.memo import Memo

# Allocates memory for a body, given its size in bytes; returns an array, or None if the memory is exhausted.
Allocate = Callable[[int], Any]

ALIGNMENT = 64
# A client that announces a longer body gets the memory for all of it only after it has sent this much. The first step
# is too small for huge pages, which numpy requests from 4 MiB on.
FIRST_STEP = 1 << 20
# Sending a smaller body to the engine is faster than allocating shared memory for it.
_MIN_SHARED = 32768
# The C library reuses the memory of smaller ones as well. That of larger ones it gives back to the system, or keeps in
# pieces that do not fit: of a gRPC message of 16 MB, clearing fresh pages took a tenth of the server's time.
_MIN_KEPT = 1 << 18
# The bodies of 64 images as JSON and their first steps; the worker releases what is unused when it is idle.
_kept = BufferPool(256 << 20)


def allocate_body(size: int, offset: int, allocate: Allocate | None = None) -> memoryview:
    """`size` uninitialised bytes, of which byte number `offset` lies at a multiple of 64. Raises MemoryError.

    Large bodies are allocated by `allocate` while it has memory.
    """
    raw = allocate(size + ALIGNMENT) if allocate is not None and size >= _MIN_SHARED else None
    if raw is None:
        room = size + ALIGNMENT
        raw = np.frombuffer(_kept.take(room), np.uint8) if size >= _MIN_KEPT else np.empty(room, np.uint8)
    start = -(raw.__array_interface__["data"][0] + offset) % ALIGNMENT
    return raw.data[start : start + size]


def release_buffers() -> None:
    """Return the memory that no body uses to the system. Any thread."""
    _kept.drop()


class RequestBody:
    """A body of `length` bytes that is being received: the first `got` bytes of `memory` are filled."""

    __slots__ = ("_allocate", "_offset", "got", "length", "memory")

    def __init__(self, length: int, first: bytes, offset: int, allocate: Allocate | None) -> None:
        """`first` are the bytes that have already arrived; `offset` and `allocate` as in `allocate_body`.

        Raises MemoryError.
        """
        self.length = length
        self.got = len(first)
        self._offset = offset
        self._allocate = allocate
        if length <= FIRST_STEP:
            self.memory = allocate_body(length, offset, allocate)
        else:
            self.memory = allocate_body(max(FIRST_STEP, self.got), offset)
        self.memory[: self.got] = first

    def room(self) -> memoryview:
        """The memory for the next bytes. Raises MemoryError."""
        if self.got == len(self.memory):
            self._move()
        return self.memory[self.got :]

    def leave_shared(self) -> None:
        """Move the body out of shared memory. Raises MemoryError."""
        if self._allocate is not None:
            self._allocate = None
            if len(self.memory) == self.length:
                self._move()

    def _move(self) -> None:
        memory = allocate_body(self.length, self._offset, self._allocate)
        memory[: self.got] = self.memory[: self.got]
        self.memory = memory


NON_STRING = "attempt to access JSON non-string as string"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
_MAX_RANK = 64  # numpy's
RESERVED_PREFIX = "triton_"
RESERVED_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)


def read_parameters(parameters: Any, request: InferenceRequest) -> bool:
    """Set the parameters in `request`; returns `binary_data_output`. Raises InvalidRequest."""
    if type(parameters) is not dict:
        raise InvalidRequest("failed to get request params.: attempt to get members for non-object")
    binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            binary = boolean(key, value)
        elif key == "priority":
            request.priority = unsigned(key, value)
        elif key == "timeout":
            request.timeout_us = unsigned(key, value)
        elif key == "sequence_id":
            if type(value) is not str and not (type(value) is int and value >= 0):
                raise unable(key, NON_STRING)  # Triton tries a string last
            request.correlation_id = value
        elif key == "sequence_start":
            request.sequence_start = boolean(key, value)
        elif key == "sequence_end":
            request.sequence_end = boolean(key, value)
        else:
            _read_custom_parameter(key, value, request)
    return binary


def set_parameter(request: InferenceRequest, key: str, value: Parameter) -> None:
    """Give the model a parameter of its own."""
    if request.parameters is None:
        request.parameters = {}
    request.parameters[key] = value


def set_custom_parameter(request: InferenceRequest, key: str, value: Any) -> None:
    """As `set_parameter`, for a JSON value of any type. Raises InvalidRequest unless a parameter can hold it."""
    if not isinstance(value, str | int | float):
        raise InvalidRequest(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    set_parameter(request, key, value)


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
    """`value` if it is a number from 0. Raises InvalidRequest."""
    if type(value) is not int or value < 0:
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


def _read_custom_parameter(key: str, value: Any, request: InferenceRequest) -> None:
    if key.startswith(RESERVED_PREFIX):
        raise InvalidRequest(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )
    set_custom_parameter(request, key, value)


# Source: docs/spec/http.md section 3, "Version text errors".


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


# Source: docs/spec/sagemaker.md sections B1 and B2; docs/spec/vertex.md section B2.


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
