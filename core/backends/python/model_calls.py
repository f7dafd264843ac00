"""What a model asks of the server while it runs: responses of other models, model control, metrics, and log lines.

Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from trident.core.backends.backend import BlsClient
from trident.core.backends.python.channel import StubChannel
from trident.core.backends.python.stub.trident_stub.wire import (
    ANSWER,
    CALL,
    DECOUPLED,
    DROP,
    FAILED,
    FINAL,
    INFER,
    LOG,
    REPLY,
    TAKEN,
    WITHIN,
    SentLayouts,
    Share,
    write_failure,
    write_record,
)
from trident.core.config.placement import Placement
from trident.core.errors import ErrorCode, ServerError, Unsupported
from trident.core.inference.pending_request import Deferred, PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest, InputTensor, RequestTrace
from trident.core.inference.response import InferenceResponse
from trident.core.interprocess.frames import frame
from trident.core.observability.metrics.custom_metrics import MetricKind, OwnMetrics

# By the numbers of the library's LogLevel.
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class ModelLog:
    """Of one instance. Any thread."""

    def __init__(self, model: str, instance: str) -> None:
        self._model = model
        self._instance = instance
        self._logger = logging.getLogger("trident.model")

    def printed(self, level: int, text: str) -> None:
        """A line that the process printed."""
        self._write(level, text, self._instance, 0)

    def logged(self, number: int, message: str, file: str, line: int) -> None:
        """A message of the model's Logger, of the level of that `number`."""
        level = _LEVELS[number] if 0 <= number < len(_LEVELS) else logging.INFO
        self._write(level, message, file, line)

    def _write(self, level: int, text: str, file: str, line: int) -> None:
        logger = self._logger
        if logger.isEnabledFor(level):
            extra = {"model": self._model, "instance": self._instance}
            logger.handle(logger.makeRecord(logger.name, level, file, line, "%s", (text,), None, extra=extra))


_log = logging.getLogger("trident.backends.python")

Fields = dict[str, Any]

# The numbers of TritonError's codes.
_CODES = {code: number for number, code in enumerate(ErrorCode)}
_SEQUENCE_START, _SEQUENCE_END = 1, 2


class ModelCalls:
    """Answers what the model of one process asks. Called on the thread that reads its channel, which must not wait."""

    def __init__(
        self,
        channel: StubChannel,
        log: ModelLog,
        models: BlsClient | None,
        metrics: OwnMetrics,
        name: str,
        placement: Placement,
    ) -> None:
        """`name` is that of the model that asks, `placement` that of its instance."""
        self._name = name
        self._placement = placement
        self._channel = channel
        self._log = log
        self._models = models
        self._metrics = metrics
        # What the model asked other models, by the number of its request.
        self._pending: dict[int, PendingRequest] = {}
        # Short executions of the models that were asked run here, where no other thread has to be woken.
        self._deferred = Deferred()
        on_frame = {
            LOG: self._logged,
            CALL: self._called,
            INFER: self._infer,
            DROP: self._drop,
            TAKEN: self._taken,
        }
        channel.listen(on_frame, self._deferred.run)

    def _logged(self, flags: int, number: int, content: memoryview) -> None:
        self._log.logged(*orjson.loads(bytes(content)))

    # --- requests to other models

    def _infer(self, flags: int, number: int, content: memoryview) -> None:
        record, inputs, requested = self._channel.read_model_request(content)
        fields: Fields = orjson.loads(record.fields)
        sequence = int(fields.get("flags") or 0)
        request = InferenceRequest(
            str(fields["model_name"]),
            [InputTensor(name, datatype, shape, data) for (name, datatype, shape), data in inputs],
            model_version=int(fields.get("model_version", -1)),
            id=str(fields.get("id") or ""),
            outputs=requested,
            parameters=fields.get("parameters") or None,
            timeout_us=int(fields.get("timeout") or 0),
            correlation_id=fields.get("correlation_id") or 0,
            sequence_start=bool(sequence & _SEQUENCE_START),
            sequence_end=bool(sequence & _SEQUENCE_END),
        )
        trace = fields.get("trace")
        if trace:
            request.trace = RequestTrace(int(trace[0]))
        if self._models is None:
            error = Unsupported("this server has no other models")
            self._reply(number, InferenceResponse.failed(request, error))
            return
        decoupled = bool(record.flags & DECOUPLED)
        reply = partial(self._reply, number)
        holder = self._placement if record.flags & WITHIN else None
        pending = self._models.infer(request, reply, decoupled=decoupled, holder=holder, defer=self._deferred.add)
        if decoupled:
            self._pending[number] = pending

    def _reply(self, number: int, response: InferenceResponse) -> None:
        """Any thread."""
        if response.final:
            self._pending.pop(number, None)
        self._channel.write_records(partial(_reply_frame, number, response))

    def _drop(self, flags: int, number: int, content: memoryview) -> None:
        pending = self._pending.get(number)
        if pending is not None:
            pending.cancel()

    def _taken(self, flags: int, number: int, content: memoryview) -> None:
        pending = self._pending.get(number)
        if isinstance(pending, StreamedRequest):
            pending.take()

    # --- calls

    def _called(self, flags: int, number: int, content: memoryview) -> None:
        name, fields = orjson.loads(bytes(content))
        if name in _METRIC_CALLS:
            self._answer(number, name, partial(_call_metrics, self._metrics, name, fields))
            return
        # It may load a model.
        call = partial(self._control, name, fields)
        threading.Thread(
            target=self._answer, args=(number, name, call), name="trident-python-call", daemon=True
        ).start()

    def _control(self, name: str, fields: Fields) -> Fields:
        call = _MODEL_CALLS.get(name)
        if call is None or self._models is None:
            raise Unsupported(f"this server does not have '{name}' for models")
        return call(self._models, self._name, fields)

    def _answer(self, number: int, name: str, call: Callable[[], Fields]) -> None:
        failed = 0
        try:
            answer = orjson.dumps(call())
        except ServerError as error:
            failed, answer = FAILED, orjson.dumps(error.message)
        except Exception as error:
            _log.exception("the call '%s' of a model failed", name)
            failed, answer = FAILED, orjson.dumps(str(error))
        self._channel.send(frame(ANSWER, number, (answer,), flags=failed))


def _reply_frame(number: int, response: InferenceResponse, numbers: SentLayouts, share: Share) -> bytes:
    records: list[Any] = []
    flags = FINAL if response.final else 0
    if response.error is not None:
        write_failure(records, number, _CODES[response.error.code], response.error.message, flags)
    else:
        outputs = list(response.outputs)
        key = tuple([(output.name, output.datatype, output.shape) for output in outputs])
        layout = numbers.find(key) or numbers.add(key, key)
        fields = orjson.dumps(response.parameters) if response.parameters else b""
        write_record(
            records, number, layout, [output.content() for output in outputs], share, flags=flags, fields=fields
        )
    return frame(REPLY, number, [numbers.head(1), *records])


def _load(models: BlsClient, asker: str, fields: Fields) -> Fields:
    parameters: dict[str, str | bytes] = {"config": fields["config"]} if fields["config"] else {}
    for path, content in fields["files"].items():
        parameters[path] = base64.b64decode(content)
    models.load(fields["model_name"], parameters, asker=asker)
    return {}


def _unload(models: BlsClient, asker: str, fields: Fields) -> Fields:
    models.unload(fields["model_name"], fields["unload_dependents"], asker=asker)
    return {}


def _is_ready(models: BlsClient, asker: str, fields: Fields) -> Fields:
    return {"ready": models.is_ready(fields["model_name"], int(fields["model_version"] or -1))}


_MODEL_CALLS: dict[str, Callable[[BlsClient, str, Fields], Fields]] = {
    "load_model": _load,
    "unload_model": _unload,
    "is_model_ready": _is_ready,
}


def _create_family(metrics: OwnMetrics, name: str, description: str, kind: str) -> int:
    return metrics.create_family(name, description, MetricKind[kind])


# For each call on metrics its function, the fields that are its arguments, and the name of its result.
_METRIC_CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "metric_family": (_create_family, ("name", "description", "kind"), "family"),
    "metric_create": (OwnMetrics.create_metric, ("family", "labels", "buckets"), "metric"),
    "metric_increment": (OwnMetrics.increment, ("metric", "value"), ""),
    "metric_set": (OwnMetrics.set, ("metric", "value"), ""),
    "metric_observe": (OwnMetrics.observe, ("metric", "value"), ""),
    "metric_value": (OwnMetrics.value, ("metric",), "value"),
    "metric_delete": (OwnMetrics.delete, ("metric",), ""),
}


def _call_metrics(metrics: OwnMetrics, name: str, fields: Fields) -> Fields:
    function, arguments, result = _METRIC_CALLS[name]
    value = function(metrics, *[fields[argument] for argument in arguments])
    return {result: value} if result else {}
