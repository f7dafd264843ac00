"""Platforms, backends and default model file names, each filled from the others.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trident.core.config.problem import Problem

if TYPE_CHECKING:  # it brings protobuf, and front ends take names from this module
    from trident.core.config.schema import ModelConfig

ENSEMBLE = "ensemble"
TENSORRT = "tensorrt_plan"
TEXT = "text"
GENAI = "genai"
# The files of a folder of the Hugging Face Hub beside its ONNX model: `model.onnx`, or others in a folder `onnx`.
_HUB_FILES = frozenset({"config.json", "tokenizer.json"})
# In the order in which the backend `text` looks for them. Weights outside of a graph lie beside it, as model.onnx_data.
_TEXT_GRAPHS = ("model.onnx", "onnx/model.onnx")
_OTHER_WEIGHTS = re.compile(r"(pytorch_|tf_|flax_|rust_)?model[^/]*\.(bin|safetensors|h5|msgpack|ot)|openvino/.*")
_CONFIGURATION = "config.pbtxt"
_HUB_GRAPHS = frozenset({"model.onnx", "onnx"})
# Written by the model builder of ONNX Runtime GenAI beside the graph of a model that generates text.
_GENAI_FILE = "genai_config.json"
# The code of a model, and the runtime of one of a framework, which gets each request by itself.
_PYTHON_CODE = "model.py"


@dataclass(frozen=True, slots=True)
class BackendPlatform:
    """One row of the table; `name` is "" for a backend without a platform name.

    `cpu_instances` is how many instances Triton makes on a CPU if the configuration gives no count. `pads`: this
    server gathers the batches itself, so that it can pad them to buckets. `tries`: a trial at load shows whether a
    graph keeps the requests of a batch apart.
    """

    name: str
    backend: str
    filename: str
    cpu_instances: int = 1
    pads: bool = False
    tries: bool = False


PLATFORMS: tuple[BackendPlatform, ...] = (
    BackendPlatform("tensorflow_savedmodel", "tensorflow", "model.savedmodel", cpu_instances=2),
    BackendPlatform("tensorflow_graphdef", "tensorflow", "model.graphdef", cpu_instances=2),
    BackendPlatform(TENSORRT, "tensorrt", "model.plan", pads=True),
    BackendPlatform("onnxruntime_onnx", "onnxruntime", "model.onnx", cpu_instances=2, pads=True, tries=True),
    BackendPlatform("", "openvino", "model.xml", pads=True),
    BackendPlatform("pytorch_libtorch", "pytorch", "model.pt", pads=True),
    BackendPlatform("torch_aoti", "pytorch", "model.pt2"),
    BackendPlatform("", "python", "model.py"),
    BackendPlatform("", TEXT, "model.onnx"),
    BackendPlatform("", GENAI, _GENAI_FILE),
)
_BACKENDS = {row.backend for row in PLATFORMS}
_PADDED = [row for row in PLATFORMS if row.pads]
# A trial shows at load if their graphs keep the requests of a batch apart.
TRIED = {row.backend for row in PLATFORMS if row.tries}
# How many instances Triton makes on a CPU if an instance group gives no count.
CPU_INSTANCES = {row.backend: row.cpu_instances for row in PLATFORMS}


_ONNX_THREADS = ("intra_op_thread_count", "inter_op_thread_count")
# The parameters that are numbers of threads. To a model in Python they mean what it likes.
THREAD_PARAMETERS: dict[str, tuple[str, ...]] = {
    "fil": ("cpu_nthread",),
    GENAI: _ONNX_THREADS[:1],
    "onnxruntime": _ONNX_THREADS,
    "openvino": ("INFERENCE_NUM_THREADS", "NUM_STREAMS"),
    "pytorch": ("INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT"),
    "tensorflow": ("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"),
    TEXT: _ONNX_THREADS,
}


def is_ensemble(config: ModelConfig) -> bool:
    return bool(config.platform == ENSEMBLE)


def pads_batches(config: ModelConfig) -> bool:
    """Return true if the model can have batch buckets; other models may use the names of their parameters."""
    if config.runtime == _PYTHON_CODE:
        return False
    return any(row.backend == config.backend and config.platform in ("", row.name) for row in _PADDED)


def fill_platform(config: ModelConfig, files: Collection[str]) -> None:
    """Fill platform, backend and default_model_filename of `config` from each other, in place.

    `files` are the names in the model's first sub-directory; they decide if the configuration says nothing. A model
    whose backend cannot be determined stays unchanged, and `platform_problems` reports it.
    """
    if is_ensemble(config):
        return
    row = _matching_row(config, files)
    if row is not None:
        config.backend = config.backend or row.backend
        config.platform = config.platform or row.name
        # A model that is code of its user looks for its file itself.
        filename = "" if config.runtime == _PYTHON_CODE else row.filename
        config.default_model_filename = config.default_model_filename or filename
        return
    suffix = config.name.partition(".")[2]
    if suffix and not (config.backend or config.platform or config.default_model_filename):
        config.backend = suffix
    if config.backend and config.backend not in _BACKENDS and not config.default_model_filename:
        config.default_model_filename = f"model.{config.backend}"


def is_hub_folder(files: Collection[str]) -> bool:
    return bool(_hub_backend(files))


def unused_in_hub_folder(files: Collection[str]) -> frozenset[str]:
    """Which of the paths of a folder of the Hub the backend `text` has no use for; none of any other folder.

    Those are the weights of other frameworks, and the other variants of the graph. With a configuration, which may name
    any file, all are used.
    """
    if _CONFIGURATION in files or _hub_backend({file.partition("/")[0] for file in files}) != TEXT:
        return frozenset()
    graph = next((graph for graph in _TEXT_GRAPHS if graph in files), "")
    return frozenset(
        path
        for path in files
        if (graph and ".onnx" in path and not path.startswith(graph)) or _OTHER_WEIGHTS.fullmatch(path)
    )


def _hub_backend(files: Collection[str]) -> str:
    """The backend of a folder of the Hub: one with an ONNX model, or one of ONNX Runtime GenAI; "" for any other."""
    names = frozenset(files)
    if _PYTHON_CODE in names:
        return ""
    if _GENAI_FILE in names:
        return GENAI
    return TEXT if names >= _HUB_FILES and not names.isdisjoint(_HUB_GRAPHS) else ""


def _matching_row(config: ModelConfig, files: Collection[str]) -> BackendPlatform | None:
    if not (config.backend or config.platform or config.default_model_filename) and (backend := _hub_backend(files)):
        return next(row for row in PLATFORMS if row.backend == backend)
    rows = [row for row in PLATFORMS if not config.platform or row.name == config.platform]
    if config.backend:
        rows = [row for row in rows if row.backend == config.backend]
    if not config.platform and config.default_model_filename:
        named = [row for row in rows if row.filename == config.default_model_filename]
        rows = named or (rows if config.backend else [])
    elif not config.platform:
        present = [row for row in rows if row.filename in files]
        rows = present or (rows if config.backend else [])
    if config.backend == "tensorflow" and len(rows) > 1:
        return None  # without a file the two platforms cannot be distinguished
    return rows[0] if rows else None


def platform_problems(config: ModelConfig, model_name: str, layout_hint: str = "") -> list[Problem]:
    """The problems of platform and backend after `fill_platform`. `layout_hint` is for a backend that is not known."""
    platform, backend = config.platform, config.backend
    if platform == ENSEMBLE:
        if backend:
            text = f"Ensemble model '{model_name}' must have platform type 'ensemble' and empty backend type"
            return [Problem("backend", text, "remove 'backend'")]
        return []
    known = {row.name for row in PLATFORMS if row.name}
    if platform and not backend:
        hint = layout_hint or f"known platforms are: {', '.join(sorted(known | {ENSEMBLE}))}"
        return [Problem("platform", f"unexpected platform type '{platform}' for {model_name}", hint)]
    if not backend and config.default_model_filename:  # the model's name counts only if no file is named
        text = f"unexpected platform type '' for {model_name}"
        return [Problem("backend", text, "set 'backend', such as \"onnxruntime\": the file name does not identify it")]
    if not backend:
        return [
            Problem(
                "backend",
                f"Invalid model name: Could not determine backend for model '{model_name}' with no backend in model "
                "configuration. Expected model name of the form 'model.<backend_name>'.",
                layout_hint or "set 'backend' in config.pbtxt",
            )
        ]
    pairs = {(row.name, row.backend) for row in PLATFORMS}
    wrong = platform in known or backend in _BACKENDS
    if wrong and (platform, backend) not in pairs:
        return [Problem("platform", f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")]
    return []
