"""The backend `genai`: models that generate text with ONNX Runtime GenAI, each instance in a process of its own.

A folder with `genai_config.json`, as the library's model builder writes it, is a model. The library holds the
interpreter's lock while it computes. Nothing in the folder is executed: a configuration that names libraries of code is
refused.
Source: docs/text-models.md; ONNX Runtime GenAI's model builder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.model_files import at_least_one, parameters_of, text_of
from trident.core.backends.python.backend import PythonBackend, names_python
from trident.core.backends.registry import check_installed
from trident.core.config.autocomplete import Watch, auto_complete, unwatched
from trident.core.config.problem import ModelSignature, TensorSignature, is_plain, read_file
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.errors import ModelLoadFailed, OutOfMemory
from trident.core.observability.hardware import host_memory

_STUB = Path(__file__).with_name("stub_models") / "genai_model.py"
_FRAMEWORK = "onnxruntime_genai"
_GPU_PACKAGE = "onnxruntime-genai-cuda"

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


class GenaiBackend:
    """Implements CompletingBackend. Loader threads, several at once."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._processes = PythonBackend(settings, _STUB)
        try:
            metadata.version(_GPU_PACKAGE)
            self.supports_gpus = True
        except metadata.PackageNotFoundError:
            self.supports_gpus = False

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        read_generation_folder(path, config.name)
        return replace(_SIGNATURE, inputs=_INPUTS[:1], optional_inputs=_INPUTS[1:])

    def complete(self, path: Path, config: ModelConfig, watch: Watch = unwatched) -> None:
        folder = read_generation_folder(path, config.name)
        auto_complete(config, _SIGNATURE, 0)
        for tensor in config.input:
            tensor.optional = tensor.name != "text_input"
        config.model_transaction_policy.decoupled = True
        for name, text in folder.templates.items():
            if name not in config.parameters:
                config.parameters[name].string_value = text

    def check(self, config: ModelConfig) -> None:
        for name in (*_LIMITS, _CACHE_TOKENS, _THREADS):
            _limit(config, name)
        if not names_python(config):
            for package in (_FRAMEWORK, "tokenizers"):
                check_installed(package, "genai", config.name)

    def load(self, context: LoadContext) -> BackendModel:
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
    """Return the tokens that an instance may keep of all sequences: as configured, or as many as its memory holds."""
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


# --- the folder


CONFIG = "genai_config.json"
# Bytes. A vocabulary of 250,000 tokens is 20 MB of JSON.
_LARGEST_JSON = 64 << 20
# Parts of models that read images or sound, whose requests are more than a text.
_OTHER_MEDIA = ("encoder", "vision", "speech", "embedding")


@dataclass(frozen=True, slots=True)
class GenerationFolder:
    """`cache_bytes` is what the keys and values of one token take at most: they may be in half precision.

    `templates` are the parameters `chat_template`, `chat_template.NAME`, `bos_token` and the like that the folder has.
    `weight_bytes` is the size of the graphs and their data.
    """

    context_length: int
    cache_bytes: int
    weight_bytes: int
    templates: dict[str, str]


def read_generation_folder(folder: Path, name: str) -> GenerationFolder:
    model = _object(_read(folder / CONFIG, name).get("model"))
    decoder = _object(model.get("decoder"))
    context = model.get("context_length")
    if not decoder or not isinstance(context, int) or context < 1:
        raise _refusal(
            name, f"{CONFIG} has no 'model' with 'decoder' and 'context_length'", "write it with the builder"
        )
    if media := [part for part in _OTHER_MEDIA if model.get(part)]:
        raise _refusal(
            name, f"has '{media[0]}', so it takes more than text", "models that generate text from text are served"
        )
    for key, value in _members(model):
        if "library" in key:
            raise _refusal(name, f"names code to load in {CONFIG}: '{key}'", f"remove '{key}': code is not executed")
        if key == "filename" and not is_plain(str(value)):
            raise _refusal(name, f"names a file outside of its folder in {CONFIG}: '{value}'", "copy the file into it")
    heads = _number(decoder, "num_key_value_heads") or _number(decoder, "num_attention_heads")
    return GenerationFolder(
        context_length=context,
        cache_bytes=2 * 4 * _number(decoder, "num_hidden_layers") * heads * _number(decoder, "head_size"),
        weight_bytes=sum(path.stat().st_size for path in folder.glob("*.onnx*")),
        templates=_templates(folder, name),
    )


def _templates(folder: Path, name: str) -> dict[str, str]:
    settings = _read(folder / "tokenizer_config.json", name, required=False)
    template = settings.get("chat_template")
    named: dict[Any, Any] = {}
    if isinstance(template, list):  # several by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
    named |= {path.stem: text_of(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if named:
        template = named.get("default", template)
    file = folder / "chat_template.jinja"
    if file.is_file():
        template = text_of(file)
    found = {"chat_template": template} | {f"chat_template.{key}": text for key, text in named.items()}
    if "added_tokens_decoder" not in settings:  # an older folder, as transformers tells them apart
        settings = {**settings, **_read(folder / "special_tokens_map.json", name, required=False)}
    for key, token in {**settings, **_object(settings.get("extra_special_tokens"))}.items():
        if key.endswith("_token"):
            found[key] = token.get("content") if isinstance(token, dict) else token
    return {key: text for key, text in found.items() if isinstance(text, str) and text}


def _read(path: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    try:
        return _object(json.loads(read_file(path, _LARGEST_JSON)))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError) and not required:
            return {}
        raise _refusal(name, f"{path} cannot be read: {error}", "copy the whole folder of the model") from error


def _refusal(name: str, reason: str, hint: str) -> ModelLoadFailed:
    return ModelLoadFailed(f"failed to load model '{name}', which generates text: {reason}", hint=hint, model=name)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(decoder: dict[str, Any], key: str) -> int:
    value = decoder.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """The members of all objects within `value`."""
    if isinstance(value, dict):
        yield from value.items()
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _members(each)
