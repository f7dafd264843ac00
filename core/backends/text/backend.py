"""The backend `text`: loads folders of the Hub, and runs texts in groups of like length.

The dynamic batcher gives an execution the texts that are queued. They are sorted by their number of tokens and run in
groups of at most `max_batch_tokens` tokens, so that a short text is hardly padded to the length of a long one, and one
large request takes no more memory than many small ones.

Source: docs/text-models.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner
from trident.core.backends.registry import importing
from trident.core.backends.text.folder import (
    CONFIG,
    Similarity,
    TaskName,
    TextModel,
    labels_for,
    read_text_model,
    read_tokenizer,
)
from trident.core.backends.text.tasks import TASKS, Group, Task, TextCall, is_entailment
from trident.core.config.autocomplete import Watch, auto_complete, is_complete, unwatched
from trident.core.config.placement import Placement
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.errors import InvalidRequest, ModelLoadFailed, ServerError
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
        """Return the tensors of the task of the model in the version directory `path`."""
        model = read_text_model(path, config)
        session = self._onnxruntime.inspected(path, _with_file(config, model)).session
        task = TASKS[model.task](model, read_tokenizer(model), _shapes(session))
        return ModelSignature(
            inputs=task.inputs,
            optional_inputs=task.optional_inputs,
            outputs=task.outputs,
            can_batch=True,
            batches_optional=True,
        )

    def complete(self, path: Path, config: ModelConfig, watch: Watch = unwatched) -> None:
        """Fill in the file, the tensors of the task, and batches."""
        signature = self.inspect(path, config)
        model = read_text_model(path, config)
        config.default_model_filename = model.file
        config.parameters["task"].string_value = model.task.value
        if model.similarity is not Similarity.COSINE:
            config.parameters["similarity_fn_name"].string_value = model.similarity.value
        if not is_complete(config):
            is_unlimited = config.max_batch_size == 0
            optional = {each.name for each in signature.optional_inputs} if not config.input else set()
            auto_complete(
                config,
                replace(signature, inputs=(*signature.inputs, *signature.optional_inputs)),
                _MAX_BATCH_SIZE,
            )
            for tensor in config.input:
                tensor.optional = tensor.optional or tensor.name in optional
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
        if model.task is TaskName.ZERO_SHOT_CLASSIFICATION and not any(map(is_entailment, model.label_ids)):
            _log.warning(
                "model '%s': none of its labels (%s) is entailment, so zero-shot classification takes the last; it "
                "needs a model that was trained on natural language inference, or id2label in %s that names its labels",
                *(name, ", ".join(model.labels), CONFIG),
            )
        config = _with_file(context.config, model)
        plan = self._onnxruntime.plan(config, context.path, context.threads)
        scores = [
            each.dims[-1] for each in context.spec.outputs.values() if each.name == "scores" and each.dims[-1] > 0
        ]
        tokenizer_for = cache(lambda most: _cutting(read_tokenizer(model), replace(model, max_tokens=most)))

        def load(placement: Placement) -> Any:
            session = self._onnxruntime.session(config, context, placement, plan).session
            _try(TextRun(session, model, tokenizer_for), model)
            return session

        def runner(session: Any, placement: Placement) -> Runner:
            run = TextRun(session, model, tokenizer_for)
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
                labels={"scores": labels_for(model.labels, scores[-1]) if scores and scores[-1] > 0 else model.labels},
            ),
        )


class TokenIds:
    """The part of a tokenizer's encoding that a run reads, for a text that came as ids."""

    overflowing: Sequence[Any] = ()

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.type_ids = [0] * len(ids)

    def __len__(self) -> int:
        return len(self.ids)


class TextRun:
    """Runs batches of texts: a Run. `use` says how the latest one was padded. On one thread at a time.

    A graph may have a fixed length or a fixed number of rows; both are filled up. Without the input `attention_mask` it
    would take padding for tokens, so that only texts of one length are run together.
    """

    def __init__(self, session: Any, model: TextModel, tokenizer_for: Callable[[int], Any]) -> None:
        """`tokenizer_for` gives the tokenizer that cuts texts to so many tokens.

        Raises ModelLoadFailed for a graph that needs other inputs than a tokenizer gives.
        """
        self.use = BucketUse(0, 0, 0, 0)
        self._session = session
        self._inputs: dict[str, type[np.generic]] = {}
        shape: Sequence[Any] = ()
        for argument in session.get_inputs():
            if argument.name not in _KNOWN_INPUTS:
                raise ModelLoadFailed(
                    f"the graph {model.file} has the input '{argument.name}', which a tokenizer does not give",
                    hint=f"export the model for {model.task.value}: its inputs may be {', '.join(_KNOWN_INPUTS)}",
                )
            self._inputs[argument.name] = np.int32 if "int32" in argument.type else np.int64
            shape = argument.shape
        self._rows, self._length = (each if isinstance(each, int) else 0 for each in (*shape, 0, 0)[:2])
        most = min(model.max_tokens, self._length) if self._length else model.max_tokens
        self._model = model = replace(model, max_tokens=most)
        tokenizer = tokenizer_for(most)
        self.task: Task = TASKS[model.task](model, tokenizer, _shapes(session))
        self._tokenizers: dict[str, Any] = {model.truncation_side: tokenizer}
        self._pad_id = tokenizer.token_to_id(model.pad_token) or 0 if model.pad_token else 0
        found = tokenizer.encode("a")
        inside = [at for at, special in enumerate(found.special_tokens_mask) if not special] or [0, -1]
        self._special = found.ids[: inside[0]], found.ids[inside[-1] + 1 :]
        is_cpu = session.get_providers()[0] == "CPUExecutionProvider"
        self._most = model.max_batch_tokens or (_CPU_TOKENS if is_cpu else _GPU_TOKENS)
        self._padding = _CPU_PADDING if is_cpu else _GPU_PADDING
        if "attention_mask" not in self._inputs and not self._length:
            self._padding = 0

    def __call__(self, names: list[str], feed: Mapping[str, Array], options: Any) -> Sequence[Array]:
        """The outputs `names` for the texts in `feed`. Raises InvalidRequest for a text that the model cannot take."""
        task = self.task
        call = task.begin(feed)
        encodings = self._encoded(call)
        parts: list[Any] = []
        owners: list[int] = []
        for at, encoding in enumerate(encodings):
            found = task.parts(encoding, call.options[at])
            parts += found
            owners += [at] * len(found)
        rows: list[list[Any]] = [[] for _ in encodings]
        tokens = padding = 0
        results: list[Any] = [None] * len(parts)
        lengths = [self._length or len(part) for part in parts]
        for indices in groups(lengths, self._most, self._padding, self._rows):
            group = self._run([owners[at] for at in indices], [parts[at] for at in indices], options)
            tokens += int(group.mask.sum())
            padding += group.mask.size
            for at, row in zip(indices, task.rows(group, call), strict=True):
                results[at] = row
        for owner, result in zip(owners, results, strict=True):
            rows[owner].append(result)
        self.use = BucketUse(0, 0, tokens, padding - tokens)
        tensors = task.tensors(rows, call)
        return [tensors[name] for name in names]

    def _encoded(self, call: TextCall) -> list[Any]:
        # What is cut anyway is not read; a context that is read in parts is read whole.
        most = None if self.task.needs_offsets else self._model.max_tokens * _MOST_CHARACTERS
        sides = [options.get("truncation_direction", self._model.truncation_side) for options in call.options]
        found: dict[int, Any] = {}
        for side in set(sides):
            indices = [at for at, each in enumerate(sides) if each == side and not isinstance(call.texts[at], list)]
            kept = slice(most) if side == "right" or most is None else slice(-most, None)
            written: list[Any] = [call.texts[at] for at in indices]
            written = [text[kept] if isinstance(text, str) else (text[0][kept], text[1][kept]) for text in written]
            if side not in self._tokenizers:
                known = self._tokenizers[self._model.truncation_side]
                copied = Tokenizer.from_str(known.to_str())
                copied.encode_special_tokens = known.encode_special_tokens  # which its JSON does not have
                self._tokenizers[side] = _cutting(copied, replace(self._model, truncation_side=side))
            tokenizer = self._tokenizers[side]
            encode = tokenizer.encode_batch if self.task.needs_offsets else tokenizer.encode_batch_fast
            try:
                found.update(zip(indices, encode(written), strict=True))
            except Exception as error:  # the library raises nothing narrower
                is_long = "Truncation error" in str(error)
                raise InvalidRequest(
                    f"the tokenizer cannot read the texts: {error}",
                    hint="a hypothesis or question leaves no tokens for the text: shorten it" if is_long else None,
                ) from error
        encodings = []
        for at, text in enumerate(call.texts):
            encoding = self._with_special_tokens(text, sides[at]) if isinstance(text, list) else found[at]
            is_cut = bool(encoding.overflowing) or (isinstance(text, str) and most is not None and len(text) > most)
            if (is_cut and call.options[at].get("truncate") is False) or not self._model.truncate:
                longest = self._model.max_tokens
                if is_cut or len(encoding) > longest:
                    count = "more" if is_cut else f"{len(encoding)} tokens, more"
                    raise InvalidRequest(
                        f"text {at} has {count} than the {longest} tokens that the model takes",
                        hint="shorten it, or let the server cut texts: truncate",
                    )
            encodings.append(encoding)
        return encodings

    def _with_special_tokens(self, ids: list[int], side: str) -> TokenIds:
        """`ids` between the special tokens of a text, unless they have them already."""
        before, after = self._special
        if ids[: len(before)] == before and ids[len(ids) - len(after) :] == after:
            ids = ids[len(before) : len(ids) - len(after)]
        room = max(0, self._model.max_tokens - len(before) - len(after))
        cut = ids
        if self._model.truncate:
            cut = ids[:room] if side == "right" else ids[max(0, len(ids) - room) :]
        found = TokenIds([*before, *cut, *after])
        found.overflowing = [ids[room:]] if len(cut) < len(ids) else []
        return found

    def _run(self, indices: list[int], encodings: list[Any], options: Any) -> Group:
        length = self._length or max(map(len, encodings))
        count = len(encodings)
        ids = np.full((self._rows or count, length), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        types = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            size = len(encoding)
            ids[row, :size] = encoding.ids
            mask[row, :size] = 1
            if "token_type_ids" in self._inputs and self._model.has_types:
                types[row, :size] = encoding.type_ids
        # Rows that nothing is read from have a text, too: the graph may divide by its length.
        ids[count:], mask[count:], types[count:] = ids[0], mask[0], types[0]
        made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        if "position_ids" in self._inputs:
            made["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        feed = {name: made[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
        outputs = self._session.run(self.task.graph_outputs, feed, options)
        return Group(indices, encodings, mask[:count], [output[:count] for output in outputs])


def groups(lengths: Sequence[int], most: int, padding: int, rows: int = 0) -> Iterator[list[int]]:
    """The indices of texts of `lengths` tokens, in groups of like length.

    A group has at most `most` tokens, padding counted, of which at most `padding` are padding, and at most `rows`
    texts, if that is not 0. A text that is longer is a group of its own.
    """
    group: list[int] = []
    tokens = 0
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens += lengths[at]
        size = (len(group) + 1) * lengths[at]
        if group and (size > most or size - tokens > padding or len(group) == rows):
            yield group
            group, tokens = [], lengths[at]
        group.append(at)
    if group:
        yield group


def _with_file(config: ModelConfig, model: TextModel) -> ModelConfig:
    """`config` with the ONNX file of the folder."""
    named = copy_of(config)
    named.default_model_filename = model.file
    return named


def _shapes(session: Any) -> dict[str, Sequence[Any]]:
    return {each.name: each.shape for each in session.get_outputs()}


def _cutting(tokenizer: Any, model: TextModel) -> Any:
    """`tokenizer`, set to cut texts as `model` says; those that are run in parts are cut later."""
    task = TASKS[model.task]
    if model.truncate and not task.needs_offsets:
        tokenizer.enable_truncation(model.max_tokens, strategy=task.cuts, direction=model.truncation_side)
    return tokenizer


def _try(run: TextRun, model: TextModel) -> None:
    """Answer two texts. Raises ModelLoadFailed, so that a model whose graph cannot does not become ready."""
    names = [each.name for each in run.task.outputs]
    try:
        found = dict(zip(names, run(names, run.task.trial(), None), strict=True))
    except ServerError:
        raise
    except Exception as error:
        raise ModelLoadFailed(
            f"text model '{model.name}' cannot answer: {error}",
            hint="export the graph in FP32 or FP16" if "bfloat16" in str(error).lower() else None,
            model=model.name,
        ) from error
    for each in run.task.outputs:
        width, expected = found[each.name].shape[-1], each.shape[-1]
        if expected not in (-1, width):
            raise ModelLoadFailed(
                f"text model '{model.name}' gives {width} numbers for a text, its files say {expected}",
                hint=f"correct {CONFIG}, or leave the outputs out of config.pbtxt",
                model=model.name,
            )
