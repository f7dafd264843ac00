"""A folder as it comes from the Hugging Face Hub: the files of a text model, and what they say about it.

Nothing in the folder is executed. Its code (`auto_map` in `config.json`), which transformers runs with
`trust_remote_code`, is ignored, and nothing is fetched: what is missing is an error.
Source: the files that transformers and sentence-transformers write (`save_pretrained`); docs/text-models.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trident.core.backends.parameters import at_least_one, boolean, field_of, parameters_of
from trident.core.config.problem import is_plain
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed

_log = logging.getLogger("trident.backends")

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
# Bytes. The largest known tokenizer.json has 35 MB.
_LARGEST_JSON = 256 << 20
# What transformers writes for "no limit" is about 1e30.
_NO_LIMIT = 1 << 24


class TaskName(Enum):
    """The tasks, by the names that the Hub has for them."""

    FEATURE_EXTRACTION = "feature-extraction"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    TEXT_RANKING = "text-ranking"
    FILL_MASK = "fill-mask"
    ZERO_SHOT_CLASSIFICATION = "zero-shot-classification"
    QUESTION_ANSWERING = "question-answering"


class Pooling(Enum):
    """How the vectors of a text's tokens become one."""

    MEAN = "mean"
    CLS = "cls"
    LAST_TOKEN = "last-token"
    MAX = "max"


class Activation(Enum):
    """What makes scores of logits."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


# The ends of the names of architectures, in `config.json`.
_ARCHITECTURES = {
    "ForSequenceClassification": TaskName.TEXT_CLASSIFICATION,
    "ForTokenClassification": TaskName.TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": TaskName.QUESTION_ANSWERING,
    "ForMaskedLM": TaskName.FILL_MASK,
}
# The flags of a pooling module of sentence-transformers, before it had `pooling_mode`.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_lasttoken": Pooling.LAST_TOKEN,
}
_POOLING_NAMES = {"lasttoken": Pooling.LAST_TOKEN}
_Choice = TypeVar("_Choice", bound=Enum)
_PLAIN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """What a folder and the parameters of its configuration say.

    `file` is the ONNX file below the folder. `max_tokens` is the length in tokens of the longest text, with special
    tokens. `labels` are the classes by index. `prompt` goes before each text. `max_batch_tokens` limits one execution
    of the graph, padding counted; 0 leaves it to the device. With `truncate` longer texts are cut, otherwise refused.
    `top_k` is how many words fill a mask. `hypothesis` is the sentence about a candidate label, in which `{}` is the
    label.
    """

    folder: Path
    file: str
    task: TaskName
    max_tokens: int
    max_batch_tokens: int
    truncate: bool
    labels: tuple[str, ...]
    hidden_size: int
    pooling: Pooling
    normalize: bool
    activation: Activation
    pad_token: str
    mask_token: str
    prompt: str
    top_k: int
    hypothesis: str


def read_text_model(folder: Path, config: ModelConfig) -> TextModel:
    """What the version directory `folder` and the `parameters` of `config` say.

    Raises ModelLoadFailed for a folder that lacks something, ConfigInvalid for a wrong parameter.
    """
    name = config.name
    read = partial(_read_json, folder, name)
    parameters = _Parameters(parameters_of(config), name)
    settings = read(CONFIG)
    if not (folder / TOKENIZER).is_file():
        raise ModelLoadFailed(
            f"failed to load text model '{name}': there is no {TOKENIZER} in {folder}",
            hint=f"write one with transformers: AutoTokenizer.from_pretrained(…).save_pretrained({str(folder)!r}); "
            "tokenizers that are Python code are not executed",
            model=name,
        )
    if "auto_map" in settings:
        _log.info("model '%s': the Python code that comes with it (auto_map) is not executed", name)
    tokenizer = read("tokenizer_config.json", required=False)
    tokens = read("special_tokens_map.json", required=False) | tokenizer
    modules = _modules(read("modules.json", required=False), name)
    pooling = read(f"{modules['Pooling']}/{CONFIG}", required=False) if modules.get("Pooling") else {}
    sentence = read("sentence_bert_config.json", required=False)
    cross_encoder = settings.get("sentence_transformers")
    prompts = read("config_sentence_transformers.json", required=False)
    labels = _labels(settings)
    task = parameters.choice("task", TaskName) or _task_of(settings, bool(modules), len(labels), name)
    limits = [_positive(tokenizer.get("model_max_length")), _positive(sentence.get("max_seq_length"))]
    found_activation = _activation_of(settings, cross_encoder if isinstance(cross_encoder, dict) else {}, len(labels))
    return TextModel(
        folder=folder,
        file=_graph_file(folder, config),
        task=task,
        max_tokens=parameters.number("max_tokens", min(filter(None, [*limits, _positions(settings)]), default=512)),
        max_batch_tokens=parameters.number("max_batch_tokens", 0),
        truncate=parameters.flag("truncate", True),
        labels=labels,
        hidden_size=_positive(settings.get("hidden_size") or settings.get("dim")) or -1,
        pooling=parameters.choice("pooling", Pooling) or _pooling_of(pooling, name),
        normalize=parameters.flag("normalize", "Normalize" in modules),
        activation=parameters.choice("activation", Activation) or found_activation,
        pad_token=_token(tokens.get("pad_token")),
        mask_token=_token(tokens.get("mask_token")),
        prompt=parameters.text("prompt", _default_prompt(prompts)),
        top_k=parameters.number("top_k", 5),
        hypothesis=parameters.text("hypothesis_template", "This example is {}."),
    )


class _Parameters:
    """The parameters of a configuration. Each method raises ConfigInvalid for a value that cannot be."""

    def __init__(self, values: Mapping[str, str], model: str) -> None:
        self._values = values
        self._model = model

    def choice(self, name: str, kind: type[_Choice]) -> _Choice | None:
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(str(each.value) for each in kind)
            raise ConfigInvalid(
                f"parameter '{name}' of model '{self._model}' is '{value}'",
                hint=f"one of: {known}",
                model=self._model,
                field=field_of(name),
            ) from None

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        return default if value is None else boolean(value, field_of(name))

    def number(self, name: str, default: int) -> int:
        if name not in self._values:
            return default
        return at_least_one(self._values[name], name, self._model)

    def text(self, name: str, default: str) -> str:
        return self._values.get(name, default)


def _read_json(folder: Path, model: str, file: str, *, required: bool = True) -> Any:
    path = folder / file
    if not is_plain(file):
        raise ModelLoadFailed(f"text model '{model}' names the file '{file}', which is outside of it", model=model)
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelLoadFailed(f"{path} of text model '{model}' is larger than {_LARGEST_JSON} bytes", model=model)
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            if not required:
                return {}
            hint = "copy the whole folder of the model from the Hub"
            raise ModelLoadFailed(
                f"failed to load text model '{model}': there is no {path}", hint=hint, model=model
            ) from None
        raise ModelLoadFailed(f"failed to read {path} of text model '{model}': {error}", model=model) from error


def _graph_file(folder: Path, config: ModelConfig) -> str:
    """The ONNX file: the configured one, else `model.onnx` or `onnx/model.onnx`, else the only one."""
    wanted = config.default_model_filename
    if wanted and wanted != "model.onnx":
        return str(wanted)
    for name in ("model.onnx", "onnx/model.onnx"):
        if (folder / name).is_file():
            return name
    found = sorted(
        path.relative_to(folder).as_posix() for path in [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    )
    if len(found) == 1:
        return found[0]
    if found:
        hint = f'name one of them: default_model_filename: "{found[0]}" (there are {", ".join(found)})'
    else:
        hint = f"export it: optimum-cli export onnx --model {folder.name} FOLDER, or copy the folder onnx from the Hub"
    raise ModelLoadFailed(
        f"failed to load text model '{config.name}': there is no model.onnx or onnx/model.onnx in {folder}",
        hint=hint,
        model=config.name,
    )


def _modules(found: Any, model: str) -> dict[str, str]:
    """The paths of the modules of sentence-transformers by class; {} if the folder has none.

    Raises ModelLoadFailed for modules whose weights are not in the graph.
    """
    if not isinstance(found, list):
        return {}
    modules = {str(each.get("type", "")).rpartition(".")[2]: str(each.get("path", "")) for each in found}
    if others := sorted(modules.keys() - _PLAIN_MODULES):
        raise ModelLoadFailed(
            f"text model '{model}' has the module '{others[0]}', which is not in its graph",
            hint="export the whole model, so that the graph has the output sentence_embedding, and remove modules.json",
            model=model,
        )
    return modules


def _task_of(settings: Mapping[str, Any], has_modules: bool, labels: int, model: str) -> TaskName:
    if has_modules:
        return TaskName.FEATURE_EXTRACTION
    architectures = settings.get("architectures") or [""]
    for end, task in _ARCHITECTURES.items():
        if str(architectures[0]).endswith(end):
            return TaskName.TEXT_RANKING if task is TaskName.TEXT_CLASSIFICATION and labels == 1 else task
    if str(architectures[0]).endswith(("ForCausalLM", "ForConditionalGeneration")):
        raise ModelLoadFailed(
            f"text model '{model}' is a {architectures[0]}, which generates text",
            hint="if it is used for embeddings, set the parameter task to feature-extraction",
            model=model,
        )
    return TaskName.FEATURE_EXTRACTION


def _labels(settings: Mapping[str, Any]) -> tuple[str, ...]:
    named = settings.get("id2label")
    if isinstance(named, dict) and named:
        by_index = {int(index): str(label) for index, label in named.items()}
        return tuple(by_index.get(index, f"LABEL_{index}") for index in range(max(by_index) + 1))
    # transformers leaves them out if they are the two default ones.
    return ("LABEL_0", "LABEL_1")


def _positions(settings: Mapping[str, Any]) -> int:
    """How many tokens the position embeddings have; 0 if the configuration does not say it.

    RoBERTa and its kin count positions from the padding's index on.
    """
    positions = _positive(settings.get("max_position_embeddings") or settings.get("n_positions"))
    offset = settings.get("pad_token_id")
    is_offset = settings.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
    return max(1, positions - int(offset or 0) - 1) if positions and is_offset else positions


def _pooling_of(found: Mapping[str, Any], model: str) -> Pooling:
    if not found:
        return Pooling.MEAN
    named = found.get("pooling_mode")
    modes = [str(named)] if named else [flag for flag, is_on in found.items() if is_on is True and "mode" in flag]
    mode = modes[0] if len(modes) == 1 else "+".join(modes)
    pooling = _POOLING_FLAGS.get(mode) or _POOLING_NAMES.get(mode)
    if pooling is None and mode in [each.value for each in Pooling]:
        pooling = Pooling(mode)
    if pooling is None:
        raise ModelLoadFailed(
            f"text model '{model}' pools with '{mode}'",
            hint=f"set the parameter pooling to one of {', '.join(each.value for each in Pooling)}",
            model=model,
        )
    return pooling


def _activation_of(settings: Mapping[str, Any], cross_encoder: Mapping[str, Any], labels: int) -> Activation:
    named = str(cross_encoder.get("activation_fn") or settings.get("sbert_ce_default_activation_function") or "")
    if named.endswith("Identity"):
        return Activation.NONE
    if labels == 1 or named.endswith("Sigmoid") or settings.get("problem_type") == "multi_label_classification":
        return Activation.SIGMOID
    return Activation.NONE if settings.get("problem_type") == "regression" else Activation.SOFTMAX


def _default_prompt(prompts: Mapping[str, Any]) -> str:
    known = prompts.get("prompts")
    return str(known.get(prompts.get("default_prompt_name"), "")) if isinstance(known, dict) else ""


def _positive(value: Any) -> int:
    """A limit; 0 if it is none."""
    is_limit = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _NO_LIMIT
    return int(value) if is_limit else 0


def _token(value: Any) -> str:
    """A special token, which is text or an object with it."""
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")
