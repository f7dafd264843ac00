"""Loading ONNX models as a server would, and executing requests on them, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from tests.unit.backend_serving import ON_CPU, Serving, config_of, serving_version, tensor_text
from tests.unit.onnx_models import write_version
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.config.placement import Placement
from trident.core.cuda import gpu_ids
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.lifecycle.options import EngineOptions


def identity_config(datatype: str, dims: Sequence[int], max_batch_size: int = 8, more: str = "") -> str:
    """For `onnx_models.identity` with one input."""
    return (
        f"max_batch_size: {max_batch_size}\n"
        + tensor_text("input", "INPUT0", datatype, dims, more)
        + tensor_text("output", "OUTPUT0", datatype, dims, more)
    )


def add_sub_config(datatype: str = "INT32", max_batch_size: int = 8, dims: Sequence[int] = (16,)) -> str:
    sides = [("input", "INPUT"), ("output", "OUTPUT")]
    tensors = [tensor_text(side, f"{name}{n}", datatype, dims) for side, name in sides for n in range(2)]
    return f"max_batch_size: {max_batch_size}\n" + "".join(tensors)


@contextmanager
def serving(
    model: onnx.ModelProto,
    config_text: str,
    folder: Path,
    *,
    placement: Placement = ON_CPU,
    threads: int = 1,
    settings: dict[str, str] | None = None,
) -> Iterator[Serving]:
    """`model` in a model repository at `folder`, loaded with `config_text`; everything is closed at the end."""
    config = config_of(config_text)
    version = write_version(model, folder, config.name)
    backend = OnnxRuntimeBackend(settings or {})
    with serving_version(backend, version, config, placement=placement, threads=threads) as model_served:
        yield model_served


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def usable_gpus() -> tuple[int, ...]:
    """The GPUs that this ONNX Runtime can use."""
    return gpu_ids() if OnnxRuntimeBackend().supports_gpus else ()


@contextmanager
def running_engine(*repositories: Path, limit_s: float = 60.0, **options: Any) -> Iterator[InferenceEngine]:
    """An engine that has loaded the models of the start."""
    paths = tuple(map(str, repositories))
    engine = make_engine(EngineOptions(repositories=paths, gpu_metrics=False, **options))
    engine.start()
    try:
        assert engine.wait_loaded(limit_s)
        yield engine
    finally:
        engine.begin_exit()
        assert engine.finish(limit_s)
