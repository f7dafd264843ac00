"""Requests of the library in a stub process to the server: other models, log lines, metrics, model control.

    Server               the protocol; the program connects the real one before it loads the model, tests one in memory
    Logger               lines of the model in the server's log, with the file and line that wrote them
    MetricFamily, Metric metrics of the model on the server's page
    load_model ...       other models: their contents are Base64

Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

import base64
import math
import os
import sys
import weakref
from collections import deque
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Callable, Protocol

from .model import Choice, TritonModelException, text_of, truth_of

if TYPE_CHECKING:
    from .inference import InferenceRequest, InferenceResponse


class ResponseStream(Protocol):
    """The responses to a request that the model sent to another model. Any thread."""

    def next(self, timeout: float | None = None) -> InferenceResponse | None:
        """The next response, waited for; None when all have come. Raises TimeoutError after `timeout` seconds."""
        ...

    def cancel(self) -> None:
        """Tell the server that no more responses are wanted. Those that come nevertheless may still be taken."""
        ...

    def add_listener(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on any thread, as soon as `next` would not wait: at once if that is already so."""
        ...


class Server(Protocol):
    """The server, as the library uses it. Any thread, several at once."""

    def send(self, request_number: int, response: InferenceResponse | None, final: bool) -> None:
        """Send a response of a sender; `response` may be None if it is `final`.

        Called by InferenceResponseSender, which has checked the order. Its outputs are the requested ones only. Blocks
        while the client has not taken what was sent before.
        """
        ...

    def together(self) -> AbstractContextManager[None]:
        """A context: the server gets what is sent in it as one piece, at its end. Nothing in it may wait."""
        ...

    def is_cancelled(self, request_number: int) -> bool:
        """Return True if the client of a request went away. Costs no round trip."""
        ...

    def is_full(self, request_number: int) -> bool:
        """Return True if `send` would block, because the client has not taken what was sent before."""
        ...

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """Write a line of the model's log. `level` is one of trident_stub.server.LogLevel; `file` has no folder."""
        ...

    def infer(self, request: InferenceRequest, decoupled: bool, within: bool) -> ResponseStream:
        """Send a request of the model to another model; returns at once. Failures are responses with an error.

        It reads `request.inputs()`, `request._requested` and `request._description()`. If not
        `decoupled`, exactly one response comes, and a decoupled target answers with an error. `within`: the model's
        `execute` does not return before the responses have come.
        """
        ...

    def call(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Ask the server for something other than an inference, and wait. Raises TritonModelException with its text.

        The names and their fields are those of the calls below.
        """
        ...


_connected: Server | None = None


def connect(server: Server | None) -> None:
    """Make `server` the one that `current` returns; None: the server has gone."""
    global _connected
    _connected = server


def current() -> Server:
    """The connected server. Raises RuntimeError outside a stub process."""
    if _connected is None:
        raise RuntimeError(
            "triton_python_backend_utils reaches its server only inside a model that a server has loaded"
        )
    return _connected


# --- the log


class LogLevel(Choice):
    """The levels of a line, which the server knows by these values."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_Level = LogLevel


class Logger:
    """Writes to the log of the server. Called on the class, from any thread. Raises TypeError for other types."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: _Level = _Level.INFO) -> None:
        _write(message, level)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        _write(message, _Level.INFO)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        _write(message, _Level.WARNING)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        _write(message, _Level.ERROR)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        _write(message, _Level.VERBOSE)


def _write(message: str | bytes, level: LogLevel) -> None:
    message = text_of(message, "Logger: the message")
    if not isinstance(level, LogLevel):
        raise TypeError("Logger: the level must be one of Logger.INFO, WARNING, ERROR and VERBOSE")
    # Who called the method. A function of `atexit`, for one, is called by nothing that has a frame.
    method = sys._getframe(1)
    caller = method.f_back or method
    current().log(level.value, message, os.path.basename(caller.f_code.co_filename), caller.f_lineno)


# --- metrics


class MetricKind(Choice):
    """The kinds of metrics, which the server knows by these names."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


# The numbers of metrics whose objects are gone. The garbage collector may delete them inside any call, where the server
# cannot be called.
_gone: deque[int] = deque()


def drop_unused() -> None:
    """Tell the server which metrics are no longer used. Called after each execution, and before other calls."""
    while _gone:
        with suppress(TritonModelException):
            current().call("metric_delete", {"metric": _gone.popleft()})


class Metric:
    """One time series. Made by `MetricFamily.Metric`. Any thread."""

    def __init__(self, number: int, family: MetricFamily) -> None:
        self._number = number
        # A metric keeps its family alive.
        self._family = family
        weakref.finalize(self, _gone.append, number).atexit = False

    def increment(self, value: float) -> None:
        """Add `value`, which may be negative for a gauge. Raises TritonModelException."""
        self._call("increment", "metric_increment", {"value": _number(value)})

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException."""
        self._call("set", "metric_set", {"value": _number(value)})

    def observe(self, value: float) -> None:
        """Count `value` in a histogram. Raises TritonModelException."""
        self._call("observe", "metric_observe", {"value": _number(value)})

    def value(self) -> float:
        """The value at the server. Raises TritonModelException."""
        return float(self._call("get", "metric_value", {})["value"])

    def _call(self, verb: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        return _call(f"Failed to {verb} metric value: ", name, {"metric": self._number, **fields})


class MetricFamily:
    """Metrics of one name, which differ by their labels. Any thread."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str | bytes, description: str | bytes, kind: MetricKind) -> None:
        """Register the family, or find the one of that name. Raises TritonModelException if that is of another kind."""
        name = text_of(name, "MetricFamily(): the name")
        description = text_of(description, "MetricFamily(): the description")
        if not isinstance(kind, MetricKind):
            raise TypeError("MetricFamily(): the kind must be one of MetricFamily.COUNTER, GAUGE and HISTOGRAM")
        drop_unused()
        fields = {"name": name, "description": description, "kind": kind.name}
        answer = _call("Error when creating MetricFamily: ", "metric_family", fields)
        self._number: int = answer["family"]
        self._kind = kind

    def Metric(
        self, labels: dict[str | bytes, str | bytes] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """The metric with those labels; several may be the same time series. Raises TritonModelException."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if (buckets is None) is (self._kind is MetricKind.HISTOGRAM):
            problem = "Missing required buckets" if buckets is None else "Unexpected buckets found"
            raise TritonModelException(f"Failed to create metric. {problem}.")
        where = "the {} of a label".format
        try:
            texts = {text_of(name, where("name")): text_of(of, where("value")) for name, of in (labels or {}).items()}
        except (TypeError, ValueError) as error:
            raise TritonModelException(f"Error when creating Metric: {error}") from error
        drop_unused()
        fields = {
            "family": self._number,
            "labels": texts,
            "buckets": None if buckets is None else [_number(bound) for bound in buckets],
        }
        answer = _call("Error when creating Metric: ", "metric_create", fields)
        return Metric(answer["metric"], self)


def _number(value: float) -> float:
    """`value` as a float: numbers of Python and numpy. Raises TypeError for others, and for what JSON does not have."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"the value of a metric must be a number, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise TypeError(f"the value of a metric must be finite, not {number}")
    return number


# --- other models


def load_model(
    model_name: str | bytes, config: str | bytes = "", files: dict[str | bytes, bytes] | None = None
) -> None:
    """Load a model, or load it again, with a configuration and files in place of those of the repository.

    `files` are contents by `file:PATH`. Raises TritonModelException with the reason.
    """
    fields = {"model_name": text_of(model_name, "'model_name'"), "config": text_of(config, "'config'")}
    encoded = {}
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{fields['model_name']}', files should be a dictionary of file paths and file "
            "contents"
        )
    for path, content in (files or {}).items():
        _check(f"files[{path!r}]", content, bytes)
        encoded[text_of(path, "'files'")] = base64.b64encode(content).decode()
    _call("Failed to load model: ", "load_model", {**fields, "files": encoded})


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Begin to unload a model. Raises TritonModelException with the reason."""
    fields = {
        "model_name": text_of(model_name, "'model_name'"),
        "unload_dependents": truth_of(unload_dependents, "unload_dependents"),
    }
    _call("Failed to unload model: ", "unload_model", fields)


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """Return True if a model serves, in that version or in any. Raises TritonModelException for an invalid version."""
    fields = {
        "model_name": text_of(model_name, "'model_name'"),
        "model_version": text_of(model_version, "'model_version'"),
    }
    answer = _call("Failed to check model readiness: ", "is_model_ready", fields)
    return bool(answer["ready"])


def _call(prefix: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        return current().call(name, fields)
    except TritonModelException as error:
        raise TritonModelException(f"{prefix}{error}") from error


def _check(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"'{name}' must be a {expected.__name__}, not {type(value).__name__}")
