"""A folder of ONNX Runtime GenAI: what `genai_config.json` and the tokenizer's files say about the model.

Nothing in the folder is executed: a configuration that names libraries of code is refused.
Source: docs/text-models.md; ONNX Runtime GenAI's model builder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trident.core.config.problem import is_plain
from trident.core.errors import ModelLoadFailed

CONFIG = "genai_config.json"
# Bytes. A vocabulary of 250,000 tokens is 20 MB of JSON.
_LARGEST_JSON = 64 << 20
# Parts of models that read images or sound, whose requests are more than a text.
_OTHER_MEDIA = ("encoder", "vision", "speech", "embedding")


@dataclass(frozen=True, slots=True)
class GenerationFolder:
    """`cache_bytes` is what the keys and values of one token take at most: they may be in half precision.

    `templates` are the parameters `chat_template`, `bos_token` and `eos_token`, those that the folder has.
    `weight_bytes` is the size of the graphs and their data.
    """

    context_length: int
    cache_bytes: int
    weight_bytes: int
    templates: dict[str, str]


def read_generation_folder(folder: Path, name: str) -> GenerationFolder:
    """What the version directory `folder` of the model `name` says. Raises ModelLoadFailed."""
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
    if isinstance(template, list):  # several by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    file = folder / "chat_template.jinja"
    if file.is_file():
        template = file.read_text()
    tokens = {key: settings.get(key) for key in ("bos_token", "eos_token")}
    found = {key: each.get("content") if isinstance(each, dict) else each for key, each in tokens.items()}
    return {key: text for key, text in {"chat_template": template, **found}.items() if isinstance(text, str) and text}


def _read(path: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ValueError(f"it is larger than {_LARGEST_JSON} bytes")
        return _object(json.loads(path.read_bytes()))
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
