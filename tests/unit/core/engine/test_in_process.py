"""The engine in one process: from a repository of real models to responses."""

from __future__ import annotations

import gc
import queue
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import Signature, signature
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import orjson
import pytest

from tests.project import pure_python_only
from tests.unit import onnx_models
from tests.unit.fake_engine import identity_spec
from trident.core.config.schema import ModelConfig
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.engine.protocol import CallMark, ConfigMessage, Engine, TensorMetadata, call, mark_of, model_metadata
from trident.core.errors import InvalidRequest, ModelNotFound
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Array
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.state import IndexEntry, ModelState

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


# Each of them costs a front end more memory than all of its own code.
ENGINE_ONLY = (
    "onnxruntime",
    "boto3",
    "botocore",
    "google.cloud.storage",
    "google.protobuf",
    "tritonclient",
    "trident.core.engine.in_process",
)
FRONT_END = "import trident.core.http.application, trident.core.remote.calls"


def test_a_front_end_imports_no_backend() -> None:
    code = f"import sys; {FRONT_END}; print(*[name for name in {ENGINE_ONLY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.split() == []


@pure_python_only
def test_the_engine_has_every_method_of_the_protocol() -> None:
    asked = {name: _shape(method) for name, method in vars(Engine).items() if not name.startswith("_")}
    assert "model" in asked
    assert {name: _shape(getattr(InferenceEngine, name)) for name in asked} == asked


def _shape(method: Any) -> Signature:
    return signature(method.fget if isinstance(method, property) else method)


def test_a_marked_method_stays_the_same_function() -> None:
    def method(self: object, name: str) -> None: ...

    assert mark_of(method) is None
    assert call(blocks=True)(method) is method
    assert mark_of(method) == CallMark(blocks=True)


def test_metadata_has_the_batch_dimension_and_a_platform() -> None:
    plain, batching = model_metadata(SPEC, [1]), model_metadata(replace(SPEC, max_batch_size=8), [1])
    assert plain.inputs == (TensorMetadata(name="IN", datatype="INT32", shape=(-1,)),)
    assert batching.outputs == (TensorMetadata(name="OUT", datatype="INT32", shape=(-1, -1)),)
    assert model_metadata(SPEC, [1]).platform == "onnxruntime_onnx"
    assert model_metadata(replace(SPEC, platform=""), [1, 2]).platform == "onnxruntime"
    config = ModelConfig(name="m", max_batch_size=8)
    assert ConfigMessage.of(config).parse() == config


SPEC = identity_spec("m")
