"""The backend `genai`: models that generate text with ONNX Runtime GenAI, each instance in a process of its own.

Source: docs/text-models.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from trident.core.backends.backend import Backend, BackendModel, LoadContext
from trident.core.backends.genai import EXTRA
from trident.core.backends.genai.folder import GenerationFolder, read_generation_folder
from trident.core.backends.parameters import at_least_one, parameters_of
from trident.core.backends.python.backend import make_backend as make_python_backend
from trident.core.backends.registry import check_installed
from trident.core.config.autocomplete import auto_complete
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.errors import OutOfMemory
from trident.core.observability.hardware import host_memory

_STUB = Path(__file__).parent / "stub" / "generation_model.py"
_FRAMEWORK = "onnxruntime_genai"
_GPU_PACKAGE = "onnxruntime-genai-cuda"
# The parameter that names another Python than the server's, which may have the library.
_ENVIRONMENT = "EXECUTION_ENV_PATH"

# The names of Triton's models for vLLM.
_INPUTS = (
    TensorSignature("text_input", "BYTES", (1,)),
    TensorSignature("stream", "BOOL", (1,)),
    TensorSignature("sampling_parameters", "BYTES", (1,)),
    TensorSignature("prompt_token_ids", "INT32", (-1,)),
)
_OUTPUTS = (
    TensorSignature("text_output", "BYTES", (1,)),
    TensorSignature("finish_reason", "BYTES", (1,)),
    TensorSignature("num_input_tokens", "UINT32", (1,)),
    TensorSignature("num_output_tokens", "UINT32", (1,)),
    TensorSignature("logprobs", "BYTES", (1,)),
)
_SIGNATURE = ModelSignature(inputs=_INPUTS, outputs=_OUTPUTS, can_batch=False)
_LIMITS = {"max_sequences": 16, "max_waiting": 256}
_CACHE_TOKENS, _THREADS = "max_cache_tokens", "intra_op_thread_count"


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend with the values of --backend-config for it and for Python models."""
    return GenaiBackend(settings)


class GenaiBackend:
    """Implements CompletingBackend. Loader threads, several at once."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._processes = make_python_backend(settings, _STUB)
        self.supports_gpus = _is_installed(_GPU_PACKAGE)

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        """The tensors of every such model. Raises a ServerError if the folder has no such model."""
        read_generation_folder(path, config.name)
        return replace(_SIGNATURE, inputs=_INPUTS[:1], optional_inputs=_INPUTS[1:])

    def complete(self, path: Path, config: ModelConfig) -> None:
        """Fill in the tensors, the template for chats, and that a request has many responses."""
        folder = read_generation_folder(path, config.name)
        auto_complete(config, _SIGNATURE, 0)
        for tensor in config.input:
            tensor.optional = tensor.name != "text_input"
        config.model_transaction_policy.decoupled = True
        for name, text in folder.templates.items():
            if name not in config.parameters:
                config.parameters[name].string_value = text

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for limits that have no meaning."""
        for name in (*_LIMITS, _CACHE_TOKENS, _THREADS):
            _limit(config, name)
        if _ENVIRONMENT not in parameters_of(config):
            check_installed(_FRAMEWORK, EXTRA, config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: a process for each instance. Raises a ServerError."""
        config = copy_of(context.config)
        self.check(config)
        folder = read_generation_folder(context.path, config.name)
        # A folder of the Hub is a version without a number in its path, so that the process could not find it.
        config.parameters["folder"].string_value = str(context.path)
        for name, default in _LIMITS.items():
            config.parameters[name].string_value = str(_limit(config, name) or default)
        config.parameters[_CACHE_TOKENS].string_value = str(_cache_tokens(config, folder, context))
        return self._processes.load(replace(context, config=config))


def _cache_tokens(config: ModelConfig, folder: GenerationFolder, context: LoadContext) -> int:
    """How many tokens of all sequences together an instance may keep: as configured, or what its memory holds."""
    most = _limit(config, "max_sequences") * folder.context_length
    if configured := _limit(config, _CACHE_TOKENS):
        return configured
    for device, count in Counter(placement.device for placement in context.placements).items():
        free = context.memory_limit(device)
        if device == "cpu" and (memory := host_memory()) is not None:
            free = memory.free // 2  # the other half is for other models, and for what requests take besides
        if free and folder.cache_bytes:
            most = min(most, (free // count - folder.weight_bytes) // folder.cache_bytes)
    if most < 1:
        raise OutOfMemory(
            f"model '{config.name}' has {folder.weight_bytes >> 20} MiB of weights, and no memory is left for the "
            "tokens of requests",
            hint="use fewer instances, or a smaller model",
            model=config.name,
        )
    return most


def _limit(config: ModelConfig, name: str) -> int:
    """The value of a parameter, 0 if it is not set. Raises ConfigInvalid."""
    text = parameters_of(config).get(name)
    return 0 if text is None else at_least_one(text, name, config.name)


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
