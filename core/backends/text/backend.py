"""The backend `text`: loads folders of the Hub, and runs texts in groups of like length.

The dynamic batcher gives an execution the texts that are queued. They are sorted by their number of tokens and run in
groups of at most `max_batch_tokens` tokens, so that a short text is hardly padded to the length of a long one, and one
large request takes no more memory than many small ones.

Nothing in the folder is executed. Its code (`auto_map` in `config.json`), which transformers runs with
`trust_remote_code`, is ignored, and nothing is fetched: what is missing is an error.
Source: the files that transformers and sentence-transformers write (`save_pretrained`); docs/text-models.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner
from trident.core.backends.model_files import at_least_one, boolean, field_of, parameters_of
from trident.core.backends.registry import importing
from trident.core.backends.text.tasks import (
    STRIDE,
    TASKS,
    Activation,
    Group,
    Pooling,
    Task,
    TaskName,
    Text,
    TextModel,
    is_entailment,
)
from trident.core.config.autocomplete import Watch, auto_complete, is_complete, unwatched
from trident.core.config.placement import Placement
from trident.core.config.problem import ModelSignature, is_plain
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoadFailed
from trident.core.inference.tensors import Array
from trident.core.observability.statistics import BucketUse

with importing("onnxruntime"):  # the extra `text` brings the tokenizers alone
    from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
    from trident.core.backends.onnxruntime.backend import device_support as device_support
    from trident.core.backends.onnxruntime.session import (
        FAILURES,
        ender,
        failure_of,
        is_poison,
        run_options,
        settings_on,
    )

_log = logging.getLogger("trident.backends")

_MAX_BATCH_SIZE = 1024
# Texts of small requests that are run together; a large request is run alone, and in groups. A CPU takes hardly less
# time for a text of a larger batch, and the first texts of one would wait for the last.
_CPU_PREFERRED, _GPU_PREFERRED = 8, 64
# A text is cut to so many characters for each token that the model takes before the tokenizer sees it.
_MOST_CHARACTERS = 1000
# What suits a processor: the most tokens of a group, and the padding that costs as much as one more run of the graph.
# On a CPU a token costs a third more where the layers' results outgrow the caches.
_CPU_TOKENS, _CPU_PADDING = 1024, 16
_GPU_TOKENS, _GPU_PADDING = 16384, 512
_KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_FAILURES = Failures(FAILURES, failure_of, is_poison)


class TextBackend:
    """Implements CompletingBackend. Loader threads, several at once."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._onnxruntime = OnnxRuntimeBackend(settings)
        self.supports_gpus = self._onnxruntime.supports_gpus

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        """The tensors of the task of the model in the version directory `path`."""
        model = read_text_model(path, config)
        session = self._onnxruntime.inspection_session(path, _with_file(config, model))
        task = _make_task(model, _read_tokenizer(model, config.name), session)
        return ModelSignature(inputs=task.inputs, outputs=task.outputs, can_batch=True)

    def complete(self, path: Path, config: ModelConfig, watch: Watch = unwatched) -> None:
        """Fill in the file, the tensors of the task, and batches."""
        signature = self.inspect(path, config)
        model = read_text_model(path, config)
        config.default_model_filename = model.file
        config.parameters["task"].string_value = model.task.value
        if not is_complete(config):
            is_unlimited = config.max_batch_size == 0
            auto_complete(config, signature, _MAX_BATCH_SIZE)
            batching = config.dynamic_batching
            if is_unlimited and config.HasField("dynamic_batching") and not batching.preferred_batch_size:
                batching.preferred_batch_size.append(_GPU_PREFERRED if self.supports_gpus else _CPU_PREFERRED)

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for execution providers that this ONNX Runtime lacks."""
        self._onnxruntime.check(config)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: a session for each device, and one tokenizer. Raises a ServerError."""
        name = context.config.name
        model = read_text_model(context.path, context.config)
        if model.task is TaskName.ZERO_SHOT_CLASSIFICATION and not any(map(is_entailment, model.labels)):
            _log.warning(
                "model '%s': none of its labels (%s) is entailment, so zero-shot classification takes the last; it "
                "needs a model that was trained on natural language inference, or id2label in %s that names its labels",
                *(name, ", ".join(model.labels), CONFIG),
            )
        config = _with_file(context.config, model)
        tokenizer = _read_tokenizer(model, name)
        plan = self._onnxruntime.plan(config, context)

        def load(placement: Placement) -> Any:
            return self._onnxruntime.session(config, context, placement, plan).session

        def runner(session: Any, placement: Placement) -> Runner:
            run = TextRun(session, model, tokenizer, _make_task(model, tokenizer, session))
            options = run_options(settings_on(plan, placement, context.placements))
            return Runner(run=run, run_options=options, padding=run, end=ender(options))

        return InProcessModel(
            context,
            Framework(
                load=load,
                runner=runner,
                failures=_FAILURES,
                provider=lambda session: str(session.get_providers()[0]),
                threads=plan.thread_plan,
                labels={"scores": model.labels},
            ),
        )


class TokenIds:
    """What the run of a text needs of a tokenizer's encoding, for a text that came as ids."""

    overflowing: Sequence[Any] = ()

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.type_ids = [0] * len(ids)

    def __len__(self) -> int:
        return len(self.ids)


class TextRun:
    """Runs batches of texts: a Run. `use` says how the latest one was padded. On one thread at a time."""

    def __init__(self, session: Any, model: TextModel, tokenizer: Any, task: Task) -> None:
        """Raises ModelLoadFailed for a graph that needs other inputs than a tokenizer gives."""
        self.use = BucketUse(0, 0, 0, 0)
        self._session = session
        self._model = model
        self._task = task
        self._encode = tokenizer.encode_batch if task.needs_offsets else tokenizer.encode_batch_fast
        self._pad_id = tokenizer.token_to_id(model.pad_token) or 0 if model.pad_token else 0
        self._special = _special_tokens(tokenizer)
        is_cpu = session.get_providers()[0] == "CPUExecutionProvider"
        self._most = model.max_batch_tokens or (_CPU_TOKENS if is_cpu else _GPU_TOKENS)
        self._padding = _CPU_PADDING if is_cpu else _GPU_PADDING
        self._inputs: dict[str, type[np.generic]] = {}
        for argument in session.get_inputs():
            if argument.name not in _KNOWN_INPUTS:
                raise ModelLoadFailed(
                    f"the graph {model.file} has the input '{argument.name}', which a tokenizer does not give",
                    hint=f"export the model for {model.task.value}: its inputs may be {', '.join(_KNOWN_INPUTS)}",
                )
            self._inputs[argument.name] = np.int32 if "int32" in argument.type else np.int64

    def __call__(self, names: list[str], feed: Mapping[str, Array], options: Any) -> Sequence[Array]:
        """The outputs `names` for the texts in `feed`. Raises InvalidRequest for a text that the model cannot take."""
        task = self._task
        texts = task.texts(feed)
        encodings = self._encoded(texts)
        if not self._model.truncate:
            self._refuse_long(encodings)
        owners = list(range(len(encodings)))
        if task.splits:
            owners = [at for at, encoding in enumerate(encodings) for _ in range(1 + len(encoding.overflowing))]
            encodings = [part for encoding in encodings for part in (encoding, *encoding.overflowing)]
        rows: list[Any] = [None] * len(encodings)
        tokens = padding = 0
        for indices in groups([len(encoding) for encoding in encodings], self._most, self._padding):
            group = self._run([encodings[at] for at in indices], options)
            tokens += int(group.mask.sum())
            padding += group.mask.size
            for at, row in zip(indices, task.rows(group), strict=True):
                rows[at] = row
        self.use = BucketUse(0, 0, tokens, padding - tokens)
        if task.splits:
            parts: list[list[Any]] = [[] for _ in texts]
            for owner, row in zip(owners, rows, strict=True):
                parts[owner].append(row)
            rows = parts
        tensors = task.tensors(rows, feed)
        return [tensors[name] for name in names]

    def _encoded(self, texts: Sequence[Text]) -> list[Any]:
        most = self._model.max_tokens * _MOST_CHARACTERS
        written = [
            text[:most] if isinstance(text, str) else (text[0][:most], text[1][:most])
            for text in texts
            if not isinstance(text, list)
        ]
        try:
            encodings = self._encode(written)
        except Exception as error:  # the library raises nothing narrower
            raise InvalidRequest(f"the tokenizer cannot read the texts: {error}") from error
        if len(written) == len(texts):
            return list(encodings)
        found = iter(encodings)
        return [self._with_special_tokens(text) if isinstance(text, list) else next(found) for text in texts]

    def _with_special_tokens(self, ids: list[int]) -> TokenIds:
        """`ids` between the special tokens of a text, unless they have them already."""
        before, after = self._special
        if ids[: len(before)] == before and ids[len(ids) - len(after) :] == after:
            ids = ids[len(before) : len(ids) - len(after)]
        if self._model.truncate:
            ids = ids[: self._model.max_tokens - len(before) - len(after)]
        return TokenIds([*before, *ids, *after])

    def _run(self, encodings: list[Any], options: Any) -> Group:
        length = max(map(len, encodings))
        ids = np.full((len(encodings), length), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        types = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            size = len(encoding)
            ids[row, :size] = encoding.ids
            mask[row, :size] = 1
            if "token_type_ids" in self._inputs:
                types[row, :size] = encoding.type_ids
        made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        if "position_ids" in self._inputs:
            made["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        feed = {name: made[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
        return Group(encodings, mask, self._session.run(self._task.graph_outputs, feed, options))

    def _refuse_long(self, encodings: Sequence[Any]) -> None:
        most = self._model.max_tokens
        for at, encoding in enumerate(encodings):
            if len(encoding) > most:
                raise InvalidRequest(
                    f"text {at} has {len(encoding)} tokens, the model takes {most}",
                    hint="shorten it, or let the server cut texts: parameter truncate of the model",
                )


def groups(lengths: Sequence[int], most: int, padding: int) -> Iterator[list[int]]:
    """The indices of texts of `lengths` tokens, in groups of like length.

    A group has at most `most` tokens, padding counted, of which at most `padding` are padding. A text that is longer is
    a group of its own.
    """
    group: list[int] = []
    tokens = 0
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens += lengths[at]
        size = (len(group) + 1) * lengths[at]
        if group and (size > most or size - tokens > padding):
            yield group
            group, tokens = [], lengths[at]
        group.append(at)
    if group:
        yield group


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that go before and after those of a text."""
    found = tokenizer.encode("a")
    inside = [at for at, special in enumerate(found.special_tokens_mask) if not special]
    return found.ids[: inside[0]], found.ids[inside[-1] + 1 :]


def _with_file(config: ModelConfig, model: TextModel) -> ModelConfig:
    """`config` with the ONNX file of the folder."""
    named = copy_of(config)
    named.default_model_filename = model.file
    return named


def _make_task(model: TextModel, tokenizer: Any, session: Any) -> Task:
    return TASKS[model.task](model, tokenizer, {each.name: len(each.shape) for each in session.get_outputs()})


def _read_tokenizer(model: TextModel, name: str) -> Any:
    """The Hub's tokenizer, set to cut texts as `model` says. Raises ModelLoadFailed."""
    try:
        tokenizer = Tokenizer.from_file(str(model.folder / TOKENIZER))
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadFailed(f"failed to read {model.folder / TOKENIZER} of text model '{name}': {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if model.truncate:
        if TASKS[model.task].splits:
            stride = min(STRIDE, model.max_tokens // 2)
            tokenizer.enable_truncation(model.max_tokens, stride=stride, strategy="only_second")
        else:
            tokenizer.enable_truncation(model.max_tokens)
    return tokenizer


# --- the folder: the files of a text model, and what they say about it

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
# Bytes. The largest known tokenizer.json has 35 MB.
_LARGEST_JSON = 256 << 20
# What transformers writes for "no limit" is about 1e30.
_NO_LIMIT = 1 << 24
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
