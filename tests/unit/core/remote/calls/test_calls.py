"""Calls of the Engine protocol between processes: every method, with real values of a real engine."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import orjson
import pytest

from tests.unit import onnx_models
from tests.waiting import until
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.engine.protocol import Engine
from trident.core.errors import ErrorCode, InvalidRequest, ModelLoadFailed, ModelNotFound, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.state import IndexEntry
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading, PinnedMemory
from trident.core.observability.metrics.snapshot import DownloadMetrics, MetricsSnapshot
from trident.core.observability.statistics import FailureReason
from trident.core.remote.calls import (
    CALLS,
    Call,
    decode_call,
    decode_failure,
    decode_result,
    encode_call,
    encode_failure,
    encode_result,
)

LIMIT_S = 60.0
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


@contextmanager
def engine_of(repository: Path) -> Iterator[InferenceEngine]:
    engine = make_engine(
        EngineOptions(
            repositories=(str(repository),),
            control_mode="explicit",
            load_models=("*",),
            gpu_metrics=False,
        )
    )
    engine.start()
    try:
        assert engine.wait_loaded(LIMIT_S)
        yield engine
    finally:
        engine.begin_exit()
        assert engine.finish(LIMIT_S)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    """An engine with a model that has served one request."""
    repository = tmp_path_factory.mktemp("models")
    onnx_models.write_version(onnx_models.add_sub(), repository, "simple", CONFIG)
    (repository / "simple" / "labels.txt").write_text("\n".join(f"label {n}" for n in range(16)))
    with engine_of(repository) as engine:
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


@pytest.mark.parametrize("call", CALLS.values(), ids=lambda call: call.name)
def test_a_call_has_the_types_of_the_protocol(call: Call) -> None:
    method = getattr(Engine, call.name)
    hints = get_type_hints(method)
    names = list(signature(method).parameters)[1:]
    assert call.parameters == tuple(hints[name] for name in names)
    assert call.result == hints["return"]


def test_calls_that_wait_for_storage_or_loads_block() -> None:
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
def test_a_call_returns_what_the_engine_returns(engine: InferenceEngine, name: str, arguments: Sequence[Any]) -> None:
    said = getattr(engine, name)(*arguments)
    assert said or said is True
    assert ask(engine, name, *arguments) == said


def test_the_spec_of_a_model_arrives_complete(engine: InferenceEngine) -> None:
    spec = ask(engine, "model_spec", "simple", -1)
    assert spec == engine.model_spec("simple")
    assert spec.inputs["INPUT0"].datatype is engine.model_spec("simple").inputs["INPUT0"].datatype
    assert spec.inputs["INPUT0"].dims == (16,)
    assert spec.outputs["OUTPUT0"].labels[15] == "label 15"
    assert type(spec.batching) is BatchingSpec
    assert spec.batching.default_policy.max_queue_size == 7
    assert spec.batching.level_policies == {2: QueuePolicy(max_queue_size=9)}
    assert spec.metric_tags == {"team": "a"}


def test_the_metrics_arrive_complete(engine: InferenceEngine) -> None:
    said = engine.metrics()
    found = ask(engine, "metrics")
    assert replace(found, hardware=said.hardware) == said  # the gauges are read all the time
    (model,) = found.models
    assert model.statistics.inference_count == 2
    assert set(model.statistics.request_failures) == set(FailureReason)
    assert found.hardware.cpu is not None


def test_metrics_of_hardware_and_downloads_arrive_complete() -> None:
    reading = HardwareReading(
        cpu=CpuReading(utilization=0.25, memory_total=2**40, memory_used=1),
        gpus=(GpuReading(uuid="GPU-1", utilization=0.5), GpuReading(uuid="GPU-2", memory_total=2**37)),
        pinned=PinnedMemory(total=2, used=1),
    )
    snapshot = MetricsSnapshot(hardware=reading, downloads=DownloadMetrics(bytes=2**50, seconds=1.5))
    call = CALLS["metrics"]
    assert decode_result(call, encode_result(call, snapshot)) == snapshot


def test_loads_and_unloads_get_the_arguments_of_the_caller(tmp_path: Path) -> None:
    bare = tmp_path / "elsewhere" / "bare"
    content = onnx_models.write(onnx_models.add_sub(width=4), bare / "model.onnx").read_bytes()
    repository = tmp_path / "models"
    repository.mkdir()
    with engine_of(repository) as engine:
        parameters = {"config": '{"max_batch_size": 4}', "file:1/model.onnx": content}
        assert ask(engine, "load_model", "given", parameters) is None
        assert ask(engine, "model_spec", "given", -1).max_batch_size == 4
        assert ask(engine, "load_directory", "shared", str(bare)) is None
        assert ask(engine, "is_model_ready", "shared", 1) is True
        assert ask(engine, "unload_model", "given", False, True) is None
        with pytest.raises(ServerError, match="given"):
            ask(engine, "model_spec", "given", -1)


def test_keyword_only_arguments_are_passed_by_name() -> None:
    class Recorder:
        def unload_model(self, name: str, unload_dependents: bool, *, wait: bool = False) -> None:
            self.seen = (name, unload_dependents, wait)

    recorder: Any = Recorder()
    call, arguments = decode_call(encode_call("unload_model", ("m", False, True)))
    assert arguments == ["m", False, True]
    call.ask(recorder, arguments)
    assert recorder.seen == ("m", False, True)


def test_large_files_and_any_text_arrive_unchanged() -> None:
    parameters = {"config": "ü\0\ud800", "file:1/model.onnx": bytes(range(256)) * 8192}
    _, arguments = decode_call(padded(encode_call("load_model", ("a \udcff", parameters))))
    assert arguments == ["a \udcff", parameters]


def test_a_name_that_is_not_unicode_does_not_break_the_index() -> None:
    call = CALLS["repository_index"]
    index = [IndexEntry(name="fine"), IndexEntry(name="\udcff", reason="no \udcfe")]
    assert decode_result(call, padded(encode_result(call, index))) == index


def test_a_call_raises_what_the_engine_raises(engine: InferenceEngine) -> None:
    with pytest.raises(ModelNotFound, match="Request for unknown model: 'none' is not found") as found:
        ask(engine, "model_spec", "none", -1)
    with pytest.raises(ModelNotFound) as said:
        engine.model_spec("none")
    assert vars(found.value) | {"code": said.value.code} == vars(said.value) | {"code": found.value.code}
    with pytest.raises(InvalidRequest, match="requested model 'none' is not available"):
        ask(engine, "model_statistics", "none", -1)
    with pytest.raises(ModelLoadFailed):
        ask(engine, "load_model", "none", {})


def test_a_failure_is_read_without_its_call() -> None:
    found = decode_failure(padded(encode_failure(ModelNotFound("no", hint="h", model="m"))))
    assert type(found) is ModelNotFound
    assert (found.message, found.hint, found.model) == ("no", "h", "m")


def test_an_unexpected_error_arrives_as_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ServerError, match="its log says more") as found:
        decode_result(CALLS["metrics"], encode_failure(KeyError("secret")))
    assert found.value.code is ErrorCode.INTERNAL
    assert "secret" in caplog.text


@pytest.mark.parametrize("arguments", [(), ("m",), ("m", 1, 2)])
def test_encoding_a_call_needs_all_arguments(arguments: Sequence[object]) -> None:
    with pytest.raises(TypeError, match="takes 2 arguments"):
        encode_call("model_spec", arguments)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["model_spec", ["m"]], "arguments of model_spec: the value is no list of 2"),
        (["model_spec", ["m", 1, 2]], "arguments of model_spec: the value is no list of 2"),
        (["model_spec", ["m", "1"]], r"arguments of model_spec: \[1\] is no int"),
        (["model_spec", ["m", True]], r"arguments of model_spec: \[1\] is no int"),
        (["model_spec", {"name": "m"}], "arguments of model_spec: the value is no list of 2"),
        (["metrics", [1]], "arguments of metrics: the value is no list of 0"),
        (["load_model", ["m", {"file:1/x": {"base64": "?"}}]], r"\[1\]\['file:1/x'\] is no str \| bytes"),
        (["load_model", ["m", {"config": {}}]], r"\[1\]\['config'\] is no str \| bytes"),
        (["submit", []], "no call 'submit'"),
        (["finish", [0]], "no call 'finish'"),
        (["__init__", []], "no call '__init__'"),
        (["x" * 10_000, []], "no call 'x{60}'$"),
        ([["model_spec"], []], "no call"),
        ([None, []], "no call"),
        (["metrics"], "neither a call nor a result"),
        (["metrics", [], []], "neither a call nor a result"),
        ({"metrics": []}, "neither a call nor a result"),
        ("metrics", "neither a call nor a result"),
        (None, "neither a call nor a result"),
    ],
)
def test_decoding_refuses_malformed_calls(content: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode_call(orjson.dumps(content))


@pytest.mark.parametrize("content", [b"", b"\0" * 16, b'["metrics", []', b"\xff", b"[" * 100_000])
def test_decoding_refuses_malformed_json(content: bytes) -> None:
    call = CALLS["metrics"]
    with pytest.raises(ValueError, match=r".+"):
        decode_call(content)
    with pytest.raises(ValueError, match=r".+"):
        decode_result(call, content)
    with pytest.raises(ValueError, match=r".+"):
        decode_failure(content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([True, {}], "result of model_spec: the value is no list of the 14 fields of ModelSpec"),
        ([True, None], "result of model_spec: the value is no list"),
        ([1, []], "does not say whether it is one"),
        ([None, None], "does not say whether it is one"),
        ([False, "text"], "no list"),
        ([True], "neither a call nor a result"),
    ],
)
def test_decoding_refuses_malformed_results(content: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode_result(CALLS["model_spec"], orjson.dumps(content))


def test_decoding_a_failure_refuses_a_result() -> None:
    with pytest.raises(ValueError, match="a result, not a failure"):
        decode_failure(encode_result(CALLS["metrics"], []))


def test_encoding_refuses_a_value_that_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        encode_result(CALLS["metrics"], {"a": object()})
