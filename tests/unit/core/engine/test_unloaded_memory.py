"""The memory of a model is free when it is unloaded: its weights at once, the rest with a collection."""

from __future__ import annotations

import gc
import queue
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from tests.project import ROOT, pure_python_only
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.lifecycle.options import EngineOptions
from trident.core.scheduling.dynamic_batcher import DynamicBatcher

LIMIT_S = 60.0
MODELS = ROOT / "deploy" / "models"


@pytest.fixture
def engine() -> Iterator[InferenceEngine]:
    def fail(*_: object) -> None:
        raise AssertionError("fatal")

    made = make_engine(EngineOptions(repositories=(str(MODELS),), control_mode="explicit"), on_fatal=fail)
    made.start()
    assert made.wait_loaded(LIMIT_S)
    yield made
    made.begin_exit()
    assert made.finish(LIMIT_S)


@pure_python_only
def test_an_unloaded_model_leaves_no_memory(engine: InferenceEngine) -> None:
    others = set(map(id, _batchers()))  # an earlier test may have left some
    engine.load_model("simple", {})
    gc.collect()
    (scheduler,) = [weakref.ref(found) for found in _batchers() if id(found) not in others]
    assert _ask(engine).error is None
    engine.unload_model("simple", unload_dependents=False, wait=True)
    gc.collect()
    assert scheduler() is None


def _batchers() -> list[DynamicBatcher]:
    return [found for found in gc.get_objects() if isinstance(found, DynamicBatcher)]


def _ask(engine: InferenceEngine) -> InferenceResponse:
    responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
    zeros = np.zeros((1, 16), np.int32)
    inputs = [InputTensor(name, "INT32", (1, 16), zeros) for name in ("INPUT0", "INPUT1")]
    engine.model("simple").submit(PendingRequest(InferenceRequest("simple", inputs), responses.put))
    return responses.get(timeout=LIMIT_S)
