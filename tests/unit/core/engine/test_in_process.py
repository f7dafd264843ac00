"""The engine in one process: from a repository of real models to responses."""

from __future__ import annotations

import gc
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import numpy as np
import orjson
import pytest

from tests.unit import onnx_models
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.errors import InvalidRequest, ModelNotFound, ModelNotReady, ServerError
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Array
from trident.core.lifecycle.options import EngineOptions, Readiness
from trident.core.lifecycle.state import IndexEntry, ModelState, Phase

LIMIT_S = 60.0
CONFIG = """
max_batch_size: 8
dynamic_batching {}
instance_group [ { kind: KIND_CPU count: 2 } ]
"""


@contextmanager
def serving(repository: Path, *more: Path, **options: object) -> Iterator[InferenceEngine]:
    settings = EngineOptions(
        repositories=(str(repository), *map(str, more)),
        cpu_metrics=False,
        gpu_metrics=False,
        **options,  # type: ignore[arg-type]
    )
    engine = make_engine(settings)
    engine.start()
    try:
        assert engine.wait_loaded(LIMIT_S)
        yield engine
    finally:
        engine.begin_exit()
        assert engine.finish(LIMIT_S)


def infer(engine: InferenceEngine, model: str, *arrays: Array, version: int = -1) -> InferenceResponse:
    inputs = [InputTensor(f"INPUT{n}", "INT32", array.shape, array) for n, array in enumerate(arrays)]
    responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
    request = InferenceRequest(model, inputs, model_version=version)
    engine.model(model, version).submit(PendingRequest(request, responses.put))
    return responses.get(timeout=LIMIT_S)


def ones(rows: int = 1) -> Array:
    return np.ones((rows, 16), np.int32)


def test_the_engine_serves_a_model(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG)
    with serving(tmp_path) as engine:
        assert engine.is_ready()
        assert engine.phase().name == Phase.READY
        response = infer(engine, "simple", ones(2), ones(2))
        assert response.error is None
        assert [o.name for o in response.outputs] == ["OUTPUT0", "OUTPUT1"]
        assert (response.outputs[0].array == 2).all()
        assert response.outputs[0].shape == (2, 16)
        (entry,) = engine.model_statistics("simple")
        assert (entry.name, entry.version) == ("simple", 1)
        assert (entry.statistics.inference_count, entry.statistics.execution_count) == (2, 1)
        (line,) = engine.overview()
        assert (line.device, line.execution_provider) == ("cpu", "CPUExecutionProvider")
        (metrics,) = engine.metrics().models
        assert metrics.statistics.request_success == 1


def test_errors_are_responses(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG)
    with serving(tmp_path) as engine:
        with pytest.raises(ModelNotFound):
            infer(engine, "nope")
        error = infer(engine, "simple", ones()).error
        assert isinstance(error, InvalidRequest)
        assert "expected 2 inputs but got 1 inputs for model 'simple'" in error.message


def test_all_versions_of_the_policy_serve(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG + "version_policy { all {} }")
    onnx_models.write(onnx_models.add_sub(), tmp_path / "simple" / "7" / "model.onnx")
    with serving(tmp_path) as engine:
        assert engine.model_metadata("simple").versions == (1, 7)
        assert engine.model_metadata("simple", 1).versions == (1,)
        assert infer(engine, "simple", ones(), ones()).model_version == 7
        assert infer(engine, "simple", ones(), ones(), version=1).model_version == 1
        assert len(engine.model_statistics()) == 2
        with pytest.raises(InvalidRequest, match=r"^requested model version is not available for model 'simple'$"):
            engine.model_statistics("simple", 5)
        with pytest.raises(InvalidRequest, match=r"^requested model 'nope' is not available$"):
            engine.model_statistics("nope")


def test_a_model_that_fails_gives_the_reason_and_the_others_serve(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "good", CONFIG)
    broken = onnx_models.write_version(onnx_models.add_sub(), tmp_path, "broken", CONFIG)
    (broken / "model.onnx").write_bytes(b"no model")
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "typo", "max_batch_sise: 8")
    with serving(tmp_path) as engine:
        phase = engine.phase()
        assert phase.name == Phase.FAILED
        assert set(phase.failures) == {"broken", "typo"}
        assert not engine.is_ready()
        index = {entry.name: entry for entry in engine.repository_index(ready_only=False)}
        assert index["good"].state is ModelState.READY
        assert (index["broken"].version, index["broken"].state) == (1, ModelState.UNAVAILABLE)
        assert index["broken"].reason.startswith("Internal: onnx runtime error 7: ")
        assert "max_batch_sise" in index["typo"].reason
        assert [entry.name for entry in engine.repository_index(ready_only=True)] == ["good"]
        assert infer(engine, "good", ones(), ones()).error is None
        with pytest.raises(ModelNotReady, match="'broken' failed to load: version 1 is UNAVAILABLE: Internal: onnx"):
            engine.model("broken")
        with pytest.raises(ModelNotReady, match=r"'typo' failed to load: Invalid argument: .* named .max_batch_sise."):
            engine.model("typo")


def test_without_strict_readiness_a_failed_model_does_not_count(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "typo", "max_batch_sise: 8")
    with serving(tmp_path, readiness=Readiness.STARTED) as engine:
        assert engine.is_ready()


def test_a_name_in_two_repositories_is_served_from_neither(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for repository in (first, second):
        onnx_models.write_version(onnx_models.add_sub(), repository, "simple", CONFIG)
    onnx_models.write_version(onnx_models.add_sub(), second, "other", CONFIG)
    with serving(first, second) as engine:
        assert engine.repository_index(ready_only=False) == [
            IndexEntry(name="other", version=1, state=ModelState.READY),
            IndexEntry(name="simple", state=ModelState.UNAVAILABLE, reason="model appears in two or more repositories"),
        ]
        assert not engine.is_ready()


def test_a_missing_repository_fails_the_start(tmp_path: Path) -> None:
    with serving(tmp_path / "nowhere") as engine:
        assert engine.phase().name == Phase.FAILED
        assert engine.phase().failures == {"model repository": "Unavailable: repository path is not a valid directory"}


def test_load_and_unload_need_explicit_mode(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        for call in (lambda: engine.load_model("m", {}), lambda: engine.unload_model("m", False)):
            with pytest.raises(
                ModelNotReady, match=r"^explicit model load / unload is not allowed if polling is enabled$"
            ):
                call()


def test_an_exiting_engine_is_unready_and_serves_until_it_finishes(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG)
    with serving(tmp_path) as engine:
        engine.begin_exit()
        assert not engine.is_live()
        assert not engine.is_ready()
        assert infer(engine, "simple", ones(), ones()).error is None
        assert engine.finish(LIMIT_S)
        assert isinstance(infer(engine, "simple", ones(), ones()).error, ServerError)


def test_warmup_runs_before_the_model_is_ready_and_is_not_counted(tmp_path: Path) -> None:
    warmup = """
    model_warmup [ { name: "w" batch_size: 4 count: 2
      inputs [ { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 16 ] zero_data: true } },
               { key: "INPUT1" value { data_type: TYPE_INT32 dims: [ 16 ] random_data: true } } ] } ]
    """
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG + warmup)
    with serving(tmp_path) as engine:
        (entry,) = engine.model_statistics("simple")
        assert (entry.statistics.execution_count, entry.statistics.inference_count) == (0, 0)
        assert entry.statistics.batches == ()


def test_a_request_leaves_no_cycle_behind(tmp_path: Path) -> None:
    """Cycles would keep every body until the garbage collector runs, and each run would delay requests."""
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG)
    document = {
        "inputs": [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for n in range(2)]
    }
    body = orjson.dumps(document)
    with serving(tmp_path) as engine:
        bridge = GeventBridge(gevent.get_hub())
        application = V2Application(engine, HttpOptions(), bridge)

        def send() -> None:
            environ = {
                "REQUEST_METHOD": "POST",
                "PATH_INFO": "/v2/models/simple/infer",
                "trident.body": body,
                "trident.client_gone": lambda: False,
            }
            statuses: list[str] = []
            application(environ, lambda status, headers: statuses.append(status))
            assert statuses == ["200 OK"]

        send()
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                send()
            # Fewer than one per request: only what the interpreter leaves by itself.
            assert gc.collect() < 50
        finally:
            gc.enable()
            bridge.close()
