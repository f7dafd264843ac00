"""The calls of the Engine protocol, their values as JSON, and the errors that they raise."""

from __future__ import annotations

import inspect
import logging
import math
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import orjson
import pytest

import trident.core
from tests.project import product_modules
from tests.unit import onnx_models
from tests.unit.onnx_serving import running_engine
from tests.waiting import until
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.engine.in_process import InferenceEngine
from trident.core.engine.protocol import Engine
from trident.core.errors import ErrorCode, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import BY_NAME, Datatype
from trident.core.lifecycle.state import IndexEntry
from trident.core.observability.statistics import FailureReason
from trident.core.remote.calls import (
    CALLS,
    decode_call,
    decode_result,
    encode_call,
    encode_failure,
    encode_result,
    error_of,
    error_to_plain,
    from_plain,
    to_plain,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    dims: tuple[int, ...] = ()


def over_the_wire(value: object, hint: Any) -> Any:
    return from_plain(orjson.loads(orjson.dumps(to_plain(value))), hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (None, None.__class__),
        ("", str),
        ("ä\0", str),
        (-(2**63), int),
        (2**64 - 1, int),
        (True, bool),
        (1.5, float),
        (7, float),
        (math.inf, float),
        (-math.inf, float),
        (b"", bytes),
        (bytes(range(256)), bytes),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (BY_NAME["BF16"], Datatype),
        ((1, 2), tuple[int, ...]),
        ((), tuple[int, ...]),
        ((1, "x"), tuple[int, str]),
        ((), tuple[()]),
        ([1, None], list[int | None]),
        ({"a": (1,)}, dict[str, tuple[int, ...]]),
        ({-3: "a", 0: "b"}, dict[int, str]),
        ({Level.LOW: "a"}, dict[Level, str]),
        ({"a": "text", "b": b"bytes"}, dict[str, str | bytes]),
        ([1, True, "x", 0.5], list[str | int | bool | float]),
        ([("x",), "x", None, 1], list[tuple[str, ...] | str | int | None]),
        ({"a": [1, {"b": None}]}, dict[str, Any]),
        ({"a": [1, {"b": None}]}, dict[str, object]),
    ],
)
def test_value_is_read_as_it_was_written(value: object, hint: Any) -> None:
    found = over_the_wire(value, hint)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, Inner, {(1, 2): 3}, {True: 1}, {"a": [bytearray(b"x")]}])
def test_writing_refuses_types_that_cannot_be_sent(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be"):
        to_plain(value)


LIMIT_S = 60.0
EXPLICIT = {"control_mode": "explicit", "load_models": ("*",)}
# Requests are frames of their own; the engine sends the others with its state.
NO_CALLS = {"model", "model_nowait", "is_live", "is_ready", "phase", "trace_gate", "trace_answered"}
CONFIG = """
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] label_filename: "labels.txt" },
         { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 priority_levels: 2
  default_priority_level: 1 default_queue_policy { max_queue_size: 7 default_timeout_microseconds: 600000000 }
  priority_queue_policy { key: 2 value { max_queue_size: 9 } } }
instance_group [ { kind: KIND_CPU count: 2 } ]
metric_tags { key: "team" value: "a" }
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    """An engine with a model that has served one request."""
    repository = tmp_path_factory.mktemp("models")
    onnx_models.write_version(onnx_models.add_sub(), repository, "simple", CONFIG)
    (repository / "simple" / "labels.txt").write_text("\n".join(f"label {n}" for n in range(16)))
    with running_engine(repository, **EXPLICIT) as engine:
        assert engine.is_ready(), engine.repository_index(False)
        responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
        array = np.ones((2, 16), np.int32)
        inputs = [InputTensor(f"INPUT{n}", "INT32", array.shape, array) for n in range(2)]
        engine.model("simple").submit(PendingRequest(InferenceRequest("simple", inputs), responses.put))
        assert responses.get(timeout=LIMIT_S).error is None
        # The batch is counted after its requests were answered.
        until(lambda: engine.model_statistics("simple")[0].statistics.inference_count == 2)
        yield engine


def ask(engine: Engine, name: str, *arguments: object) -> Any:
    """Make the call as a front end and the engine do: only two documents cross."""
    call, sent = decode_call(padded(encode_call(name, arguments)))
    try:
        answer = encode_result(call, call.ask(engine, sent))
    except Exception as error:
        answer = encode_failure(error)
    return decode_result(CALLS[name], padded(answer))


def padded(content: bytes) -> memoryview:
    """`content` with the padding of a frame."""
    return memoryview(content + b" " * (-len(content) % 16))


def test_every_method_of_the_protocol_is_a_call_or_a_frame() -> None:
    methods = {name for name in vars(Engine) if not name.startswith("_")}
    assert set(CALLS) | NO_CALLS == methods
    assert not set(CALLS) & NO_CALLS
    blocking = {name for name, call in CALLS.items() if call.mark.blocks}
    assert blocking == {"repository_index", "load_model", "load_directory", "unload_model"}


QUESTIONS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("model_spec", ("simple", -1)),
    ("server_metadata", ()),
    ("model_metadata", ("simple", 1)),
    ("model_config", ("simple", -1)),
    ("model_statistics", ("simple", 1)),
    ("model_statistics", ("", -1)),
    ("repository_index", (False,)),
    ("repository_index", (True,)),
    ("is_model_ready", ("simple", 1)),
)


@pytest.mark.parametrize(("name", "arguments"), QUESTIONS)
def test_call_returns_the_engines_result(engine: InferenceEngine, name: str, arguments: Sequence[Any]) -> None:
    said = getattr(engine, name)(*arguments)
    assert said or said is True
    assert ask(engine, name, *arguments) == said


def test_the_metrics_arrive_complete(engine: InferenceEngine) -> None:
    said = engine.metrics()
    found = ask(engine, "metrics")
    assert replace(found, hardware=said.hardware) == said  # the gauges are read all the time
    (model,) = found.models
    assert model.statistics.inference_count == 2
    assert set(model.statistics.request_failures) == set(FailureReason)
    assert found.hardware.cpu is not None


def test_any_text_and_large_files_arrive_unchanged() -> None:
    parameters = {"config": "ü\0\ud800", "file:1/model.onnx": bytes(range(256)) * 8192}
    _, arguments = decode_call(padded(encode_call("load_model", ("a \udcff", parameters))))
    assert arguments == ["a \udcff", parameters]
    call = CALLS["repository_index"]
    index = [IndexEntry(name="fine"), IndexEntry(name="\udcff", reason="no \udcfe")]
    assert decode_result(call, padded(encode_result(call, index))) == index


def error_over_the_wire(error: BaseException) -> ServerError:
    return error_of(orjson.loads(orjson.dumps(error_to_plain(error))))


def engine_errors() -> Iterator[type[ServerError]]:
    """Every error class that the rooms of the engine define."""
    for module in product_modules(trident.core):
        if module.__name__.split(".")[2] in ("frontend", "http", "grpc", "remote"):
            continue
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, ServerError) and kind.__module__ == module.__name__:
                yield kind


@pytest.mark.parametrize("kind", sorted(set(engine_errors()), key=str))
def test_every_error_of_the_engine_keeps_its_class(kind: type[ServerError]) -> None:
    error: ServerError
    if kind is InvalidModelConfig:
        problems = [Problem("input[0].dims", "must be set", "give dims"), Problem("name", "differs")]
        error = InvalidModelConfig(problems, model="m")
    else:
        error = kind("what happened", hint="what to do", model="m")
    found = error_over_the_wire(error)
    assert type(found) is kind
    assert (found.message, found.hint, found.model) == (error.message, error.hint, "m")
    assert str(found) == str(error)
    assert found.code is kind.code
    assert found.reason == error.reason
    assert vars(found).get("problems") == vars(error).get("problems")


@pytest.mark.parametrize("code", ErrorCode)
def test_an_unknown_class_keeps_its_code(code: ErrorCode) -> None:
    unknown = type("FromTomorrow", (ServerError,), {"code": code})
    found = error_over_the_wire(unknown("what happened", hint="h"))
    assert type(found) is ServerError
    assert (found.code, found.message, found.hint) == (code, "what happened", "h")
    assert ServerError.code is ErrorCode.UNKNOWN


@pytest.mark.parametrize("error", [KeyError("secret"), RuntimeError("secret"), MemoryError(), KeyboardInterrupt()])
def test_an_unexpected_error_is_logged_and_hidden_from_the_client(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "trident.engine"):
        found = error_over_the_wire(error)
    assert found.code is ErrorCode.INTERNAL
    assert found.message == "unexpected error in the server, its log says more"
    assert (found.hint, found.model) == (None, None)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_text_that_is_not_unicode_is_sent() -> None:
    error = InvalidModelConfig([Problem("\udcff", "m \ud800 ü", "h \udc80")], model="\udcff")
    found = error_over_the_wire(error)
    assert isinstance(found, InvalidModelConfig)
    assert (found.message, found.hint, found.model) == ("m ? ü", "h ?", "?")


@pytest.mark.parametrize("name", ["ErrorCode", "Exception", "Enum", "annotations", "__builtins__", "os.system"])
def test_reading_finds_only_classes_of_the_table(name: str) -> None:
    assert type(error_of([name, "Unknown", "m", None, None, None, []])) is ServerError
