"""The backend `text`: loads folders of the Hub, and runs texts in groups of like length.

The dynamic batcher gives an execution the texts that are queued. They are sorted by their number of tokens and run in
groups of at most `max_batch_tokens` tokens, so that a short text is hardly padded to the length of a long one, and one
large request takes no more memory than many small ones.
Source: docs/text-models.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner
from trident.core.backends.registry import importing
from trident.core.backends.text.folder import CONFIG, TOKENIZER, TaskName, TextModel, read_text_model
from trident.core.backends.text.tasks import STRIDE, TASKS, Group, Task, Text, is_entailment
from trident.core.config.autocomplete import auto_complete, is_complete
from trident.core.config.placement import Placement
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.errors import InvalidRequest, ModelLoadFailed
from trident.core.inference.tensors import Array
from trident.core.observability.statistics import BucketUse

with importing("onnxruntime"):  # the extra `text` brings the tokenizers alone
    from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
    from trident.core.backends.onnxruntime.session import FAILURES, failure_of, is_poison, run_options, settings_on

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

    def complete(self, path: Path, config: ModelConfig) -> None:
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
            return Runner(
                run=run, run_options=run_options(settings_on(plan, placement, context.placements)), padding=run
            )

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
