"""The tasks of text models: the tensors of a request, the texts for the graph, and the postprocessing of its results.

The answers are those of transformers' pipelines and of sentence-transformers for the same folder. Those of tasks that
find parts of a text are JSON, in the pipelines' form. `tests/record_text_answers.py` asks those libraries.
Source: docs/text-models.md; transformers' pipelines; sentence-transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any

import numpy as np
import orjson
from tokenizers.models import BPE

from trident.core.backends.text.folder import Activation, TaskName, TextModel, labels_for
from trident.core.backends.text.modules import normalized, pool, steps_of
from trident.core.config.problem import TensorSignature
from trident.core.errors import InvalidRequest, ModelLoadFailed
from trident.core.inference.tensors import Array, bytes_array

IDS = b"\xffids"
"""Begins an element that is token ids, INT32 in little-endian order. No UTF-8 text has its first byte."""
Text = str | tuple[str, str] | list[int]
Options = Mapping[str, Any]
Shapes = Mapping[str, Sequence[Any]]
"""The shapes of a graph's outputs by name; a dimension that is not a number is variable."""
OPTIONS = "parameters"
"""The input with a text's own options, as JSON."""

# What a graph may call the vectors of whole texts, where it has the pooling itself.
_POOLED = ("sentence_embedding", "text_embeds")
_TEXT = TensorSignature("text", "BYTES", (-1, 1))
_TOKENS = TensorSignature("tokens", "INT32", (-1, 1))
_OPTIONS = TensorSignature(OPTIONS, "BYTES", (-1, 1))
# What transformers' `clean_up_tokenization` joins, in its order.
_JOINED = (
    *((f" {mark}", mark) for mark in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
_MASK = re.compile(r"\[MASK\]|<mask>")
# As in transformers: tokens of a part of a question's context, and those that two parts share.
_QUESTION_TOKENS, _STRIDE = 384, 128


# --- options of a text, each with its parser


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number of at least 1")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _names(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise ValueError("a text or a list of texts")
    return value


def _template(value: Any) -> list[str]:
    """The pieces around the label, of a text as `str.format` reads it."""
    pieces = [""]
    names = []
    try:
        for written, name, form, conversion in Formatter().parse(_text(value)):
            pieces[-1] += written
            if name is not None:
                names.append(name)
                if name not in ("", "0") or form or conversion or names not in ([""], ["0"] * len(names)):
                    raise ValueError
                pieces.append("")
    except ValueError:
        pieces = []
    if len(pieces) < 2:
        raise ValueError("a text with {} or {0} where the label goes, and no other braces but {{ and }}")
    return pieces


def _one_of(*known: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value.lower() not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return value.lower()

    return read


_CUTS: Mapping[str, Callable[[Any], Any]] = {"truncate": _flag, "truncation_direction": _one_of("left", "right")}


# Cohere's kinds of texts, and what sentence-transformers calls the prompts for them.
_INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "search_query": ("query",),
    "search_document": ("document", "passage", "corpus"),
    "classification": (),
    "clustering": (),
}


@dataclass(frozen=True, slots=True)
class TextCall:
    """The texts of an execution, `each` for an item of the batch, and the options of each text."""

    texts: Sequence[Text]
    options: Sequence[Options]
    each: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A run of tokens of a text that is too long, between the special tokens. `indices` are those in `whole`.

    `spaced` is the one of them whose offsets have the space before it, -1 if none has.
    """

    whole: Any
    indices: Sequence[int]
    spaced: int = -1

    def __len__(self) -> int:
        return len(self.indices)

    def offsets(self, at: int) -> tuple[int, int]:
        """The characters of the token `at` of the whole text."""
        start, end = self.whole.offsets[at]
        if at != self.spaced:
            return start, end
        return start - 1, end - (start == end)  # a token of spaces becomes empty

    @property
    def ids(self) -> list[int]:
        return [self.whole.ids[at] for at in self.indices]

    @property
    def type_ids(self) -> list[int]:
        return [self.whole.type_ids[at] for at in self.indices]


@dataclass(frozen=True, slots=True)
class Group:
    """Texts that the graph has run together: their indices in the call, their tokens, and the graph's `outputs`.

    `mask` is 1 where a row has a token. The outputs are in the task's order.
    """

    indices: Sequence[int]
    encodings: Sequence[Any]
    mask: Array
    outputs: Sequence[Array]


class Task:
    """One task of one model. `rows` is called on the instance's thread, the others on any.

    `graph_outputs` are the outputs that it takes from the graph. `needs_offsets`: it says where in a text it has found
    something. `cuts`: the side of a pair that is cut if both are too long together, for the tokenizer.
    `options` are those that a text may have, with what reads them.
    """

    inputs: tuple[TensorSignature, ...] = (_TEXT,)
    optional_inputs: tuple[TensorSignature, ...] = (_OPTIONS,)
    outputs: tuple[TensorSignature, ...]
    options: Mapping[str, Callable[[Any], Any]] = {}
    needs_offsets = False
    cuts = "longest_first"

    def __init__(self, model: TextModel, tokenizer: Any, graph: Shapes) -> None:
        """`graph` are the shapes of its outputs. Raises ModelLoadFailed if they do not fit."""
        self._model = model
        self._tokenizer = tokenizer
        self.graph_outputs = self._choose(graph)

    def begin(self, feed: Mapping[str, Array]) -> TextCall:
        """The texts of a batch and their options. Raises InvalidRequest."""
        options = self._options(feed)
        return TextCall(self._texts(feed, options), options)

    def parts(self, encoding: Any, options: Options) -> Sequence[Any]:
        """The tokens of a text for the graph: one run, or several whose rows are joined by `tensors`."""
        return [encoding]

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        """The result for each text of `group`."""
        raise NotImplementedError

    def tensors(self, rows: list[list[Any]], call: TextCall) -> dict[str, Array]:
        """The outputs for the results of all parts of all texts of a batch, in their order."""
        raise NotImplementedError

    def trial(self) -> dict[str, Array]:
        """Inputs for two texts of different lengths, to see at the load that they are answered."""
        return {"text": _column("a", "a a a")}

    def _texts(self, feed: Mapping[str, Array], options: Sequence[Options]) -> Sequence[Text]:
        return texts_of(feed["text"])

    def _options(self, feed: Mapping[str, Array]) -> list[Options]:
        given = feed.get(OPTIONS)
        if given is None:
            return [{}] * len(next(iter(feed.values())))
        return [self._read_options(text, at) for at, text in enumerate(texts_of(given))]

    def _read_options(self, text: str, at: int) -> Options:
        try:
            found = orjson.loads(text or "{}")
            if not isinstance(found, dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            raise InvalidRequest(f"the {OPTIONS} of text {at} are not a JSON object: {error}") from None
        read = {}
        for name, value in found.items():
            if name not in self.options:
                raise InvalidRequest(
                    f"the parameter '{name}' is not known for {self._model.task.value}",
                    hint=f"known are: {', '.join(sorted(self.options))}",
                )
            if value is None:
                continue
            try:
                read[name] = self.options[name](value)
            except ValueError as error:
                raise InvalidRequest(f"the parameter '{name}' is {orjson.dumps(value).decode()}, not {error}") from None
        return read

    def _prompt(self, options: Options) -> str:
        """The prompt before a text, by the `prompt_name` in its options. Raises InvalidRequest."""
        name, prompts = options.get("prompt_name"), self._model.prompts
        if name is None and prompts and (kind := options.get("input_type")):
            known = (*_INPUT_TYPES[kind], kind)
            name = next((each for each in (kind, *known) if each in prompts), known[0])
        if name is None:
            return self._model.prompt
        # sentence-transformers has these two for each model of embeddings, empty where a folder does not say them.
        if name in ("query", "document") and self._model.task is TaskName.FEATURE_EXTRACTION:
            return prompts.get(name, "")
        if name not in prompts:
            raise InvalidRequest(
                f"the model has no prompt '{name}'", hint=f"its prompts are: {', '.join(prompts) or 'none'}"
            )
        return prompts[name]

    def _choose(self, graph: Shapes) -> list[str]:
        return [self._with_rank(graph, 2)]

    def _with_rank(self, graph: Shapes, rank: int) -> str:
        for name, shape in graph.items():
            if len(shape) == rank:
                return name
        raise ModelLoadFailed(
            f"the graph {self._model.file} has no output of {rank} dimensions, which {self._model.task.value} needs: "
            f"its outputs are {', '.join(graph)}",
            hint=f"export the model for this task, or set the parameter task (now {self._model.task.value})",
        )


class Embedding(Task):
    """`embedding`: one vector for each text, or for each list of token ids, and `tokens`: how many tokens it has."""

    options: Mapping[str, Callable[[Any], Any]] = {
        "prompt_name": _text,
        "input_type": _one_of(*_INPUT_TYPES),
        "normalize": _flag,
        **_CUTS,
    }

    def __init__(self, model: TextModel, tokenizer: Any, graph: Shapes) -> None:
        super().__init__(model, tokenizer, graph)
        shape = graph[self.graph_outputs[0]]
        self._is_pooled = len(shape) == 2
        width = shape[-1] if isinstance(shape[-1], int) else model.hidden_size
        if not self._is_pooled and model.vectors_from not in ("", "last_hidden_state"):
            raise ModelLoadFailed(
                f"text model '{model.name}' makes vectors of {model.vectors_from} (sentence_bert_config.json), and the "
                f"graph {model.file} has no vectors of whole texts",
                hint="export the whole model, so that the graph has the output sentence_embedding",
                model=model.name,
            )
        if self._is_pooled:
            # The graph has what follows it; a second Normalize changes nothing.
            model = replace(model, modules=tuple(each for each in model.modules if each[0] == "Normalize"))
        elif width > 0:
            width *= len(model.pooling)
        self._steps, width = steps_of(model, width)
        self.outputs = (TensorSignature("embedding", "FP32", (-1, width)), _TOKENS)
        self._vocabulary = tokenizer.get_vocab_size()
        self._prompt_tokens: dict[str, list[int]] = {}

    def _texts(self, feed: Mapping[str, Array], options: Sequence[Options]) -> Sequence[Text]:
        texts: list[Text] = []
        for at, element in enumerate(feed["text"].ravel().tolist()):
            prompt = self._prompt(options[at])
            if isinstance(element, bytes) and element.startswith(IDS):
                ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids if prompt else []
                texts.append([*ids, *self._ids(element.removeprefix(IDS), at)])
            else:
                texts.append(prompt + text_of(element, at))
        return texts

    def _ids(self, content: bytes, at: int) -> list[int]:
        if len(content) % 4 or not content:
            raise InvalidRequest(f"text {at} has {len(content)} bytes of token ids, which have 4 bytes each")
        ids = np.frombuffer(content, "<i4")
        wrong = ids[(ids < 0) | (ids >= self._vocabulary)]
        if len(wrong):
            raise InvalidRequest(
                f"text {at} has the token id {wrong[0]}, the model's vocabulary has 0 to {self._vocabulary - 1}",
                hint="send text, or the ids of the model's own tokenizer",
            )
        found: list[int] = ids.tolist()
        return found

    def _choose(self, graph: Shapes) -> list[str]:
        pooled = [name for name in _POOLED if len(graph.get(name, ())) == 2]
        return pooled[:1] or [self._with_rank(graph, 3)]

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        vectors = group.outputs[0].astype(np.float32, copy=False)
        if not self._is_pooled:
            skipped = None
            if not self._model.include_prompt:
                skipped = np.array([self._prompt_length(self._prompt(call.options[at])) for at in group.indices])
            vectors = pool(vectors, group.mask, self._model.pooling, skipped)
        for step in self._steps:
            vectors = step(vectors)
        found = list(vectors)
        for row, at in enumerate(group.indices):
            if call.options[at].get("normalize"):
                found[row] = normalized(found[row])
        return list(zip(found, group.mask.sum(axis=1), strict=True))

    def _prompt_length(self, prompt: str) -> int:
        """The tokens of `prompt` at the beginning of a text, special ones counted, as sentence-transformers counts."""
        if not prompt:
            return 0
        if prompt not in self._prompt_tokens:
            found = self._tokenizer.encode(prompt)
            self._prompt_tokens[prompt] = found.ids[: len(found) - found.special_tokens_mask[-1]]
        return len(self._prompt_tokens[prompt])

    def tensors(self, rows: list[list[Any]], call: TextCall) -> dict[str, Array]:
        vectors, tokens = zip(*(row for (row,) in rows), strict=True)
        return {"embedding": np.stack(vectors), "tokens": _counts(tokens)}


class Classification(Task):
    """`scores`: of each label. Triton's classification extension gives the labels with them."""

    optional_inputs = (TensorSignature("text_pair", "BYTES", (-1, 1)), _OPTIONS)
    options: Mapping[str, Callable[[Any], Any]] = {
        "function_to_apply": _one_of("softmax", "sigmoid", "none"),
        **_CUTS,
    }

    def __init__(self, model: TextModel, tokenizer: Any, graph: Shapes) -> None:
        super().__init__(model, tokenizer, graph)
        self.labels = _labels_of(model, graph[self.graph_outputs[0]])
        self.outputs = (TensorSignature("scores", "FP32", (-1, len(self.labels))),)

    def _texts(self, feed: Mapping[str, Array], options: Sequence[Options]) -> Sequence[Text]:
        texts = texts_of(feed["text"])
        if "text_pair" not in feed:
            return texts
        # As in transformers, an empty second text is none.
        return [(a, b) if b else a for a, b in zip(texts, texts_of(feed["text_pair"]), strict=True)]

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        asked = [call.options[at].get("function_to_apply") for at in group.indices]
        return [
            activated(logits, Activation(name) if name else self._model.activation)
            for logits, name in zip(group.outputs[0], asked, strict=True)
        ]

    def tensors(self, rows: list[list[Any]], call: TextCall) -> dict[str, Array]:
        return {"scores": np.stack([row for (row,) in rows])}


class Ranking(Task):
    """`score`: how well a text answers a query, and `tokens`: how many tokens both have."""

    inputs = (TensorSignature("query", "BYTES", (-1, 1)), _TEXT)
    outputs = (TensorSignature("score", "FP32", (-1, 1)), _TOKENS)
    options: Mapping[str, Callable[[Any], Any]] = {"prompt_name": _text, "raw_scores": _flag, **_CUTS}

    def _texts(self, feed: Mapping[str, Array], options: Sequence[Options]) -> Sequence[Text]:
        queries = [self._prompt(each) + query for each, query in zip(options, texts_of(feed["query"]), strict=True)]
        return list(zip(queries, texts_of(feed["text"]), strict=True))

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        raw = [call.options[at].get("raw_scores") for at in group.indices]
        scores = [
            activated(logits, Activation.NONE if is_raw else self._model.activation)
            for logits, is_raw in zip(group.outputs[0], raw, strict=True)
        ]
        return list(zip(scores, group.mask.sum(axis=1), strict=True))

    def tensors(self, rows: list[list[Any]], call: TextCall) -> dict[str, Array]:
        scores, tokens = zip(*(row for (row,) in rows), strict=True)
        return {"score": np.stack(scores)[:, -1:], "tokens": _counts(tokens)}

    def trial(self) -> dict[str, Array]:
        return {"query": _column("a", "a"), "text": _column("a", "a a a")}


class ZeroShot(Task):
    """`scores`: of each of the request's own labels, by a model that was trained on entailment.

    One label, or several of which each may be true, are judged by themselves: entailment against contradiction.
    Otherwise the scores of a text's labels sum to 1.
    """

    inputs = (_TEXT, TensorSignature("candidate_labels", "BYTES", (-1, -1)))
    outputs = (TensorSignature("scores", "FP32", (-1, -1)),)
    options: Mapping[str, Callable[[Any], Any]] = {"multi_label": _flag, "hypothesis_template": _template}
    cuts = "only_first"

    def __init__(self, model: TextModel, tokenizer: Any, graph: Shapes) -> None:
        super().__init__(model, tokenizer, graph)
        self._entailment = next((at for label, at in model.label_ids.items() if is_entailment(label)), -1)
        self._contradiction = 0 if self._entailment != 0 else -1
        try:
            self._hypothesis = _template(model.hypothesis)
        except ValueError as error:
            raise ModelLoadFailed(
                f"the parameter hypothesis_template of model '{model.name}' must be {error}"
            ) from None

    def begin(self, feed: Mapping[str, Array]) -> TextCall:
        texts, labels, options = texts_of(feed["text"]), texts_of(feed["candidate_labels"]), self._options(feed)
        if not labels:
            raise InvalidRequest("candidate_labels is empty: at least one label is needed")
        each = len(labels) // len(texts)
        pairs = [
            (text, label.join(options[at].get("hypothesis_template", self._hypothesis)))
            for at, text in enumerate(texts)
            for label in labels[at * each : (at + 1) * each]
        ]
        return TextCall(pairs, [options[at] for at in range(len(texts)) for _ in range(each)], each)

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        return list(group.outputs[0].astype(np.float32, copy=False))

    def tensors(self, rows: list[list[Any]], call: TextCall) -> dict[str, Array]:
        logits = np.stack([row for (row,) in rows]).reshape(-1, call.each, len(rows[0][0]))
        entailment = logits[:, :, self._entailment]
        pairs = np.stack([logits[:, :, self._contradiction], entailment], axis=-1)
        alone = activated(pairs, Activation.SOFTMAX)[:, :, 1]
        together = activated(entailment, Activation.SOFTMAX)
        by_default = self._model.activation is Activation.SIGMOID
        is_alone = [call.each == 1 or options.get("multi_label", by_default) for options in call.options[:: call.each]]
        return {"scores": np.where(np.array(is_alone)[:, None], alone, together)}

    def trial(self) -> dict[str, Array]:
        return {"text": _column("a", "a a a"), "candidate_labels": bytes_array([b"a", b"a a"] * 2, (2, 2))}


class _Found(Task):
    """`answer`: JSON for each text."""

    outputs = (TensorSignature("answer", "BYTES", (-1, 1)),)

    def _parts(self, encoding: Any, sequence: int, most: int, stride: int) -> Iterator[Part]:
        """The parts of at most `most` tokens of a text, in which `sequence` is cut; two share `stride` of its tokens.

        If texts are cut on the left, the last part comes first. Raises InvalidRequest if what is not cut leaves no
        room.
        """
        inside = [at for at, each in enumerate(encoding.sequence_ids) if each == sequence]
        first, last = (inside[0], inside[-1] + 1) if inside else (len(encoding), len(encoding))
        before, after = range(first), range(last, len(encoding))
        room = most - len(before) - len(after)
        if room <= stride and last - first > room:
            raise InvalidRequest(
                f"of {most} tokens {len(before) + len(after)} are not of the text that is cut, and {stride} are shared",
                hint="shorten the question, or make doc_stride smaller or max_seq_len larger",
            )
        size = last - first
        for cut in range(0, max(size, 1), max(1, room - stride)):
            kept = min(room, size - cut)
            start = first + cut if self._model.truncation_side == "right" else last - cut - kept
            # The library takes the space of a part's first token for one that it has added.
            is_spaced = self._model.adds_space and first < start < last and encoding.tokens[start].startswith("\u0120")
            yield Part(encoding, [*before, *range(start, start + kept), *after], start if is_spaced else -1)
            if cut + kept == size:
                break

    def tensors(self, rows: list[list[Any]], call: TextCall) -> dict[str, Array]:
        answers = [self.answer(parts, at, call) for at, parts in enumerate(rows)]
        return {"answer": bytes_array([orjson.dumps(each) for each in answers], (len(answers), 1))}

    def answer(self, parts: list[Any], at: int, call: TextCall) -> Any:
        """The answer to text `at`, by the results of its parts."""
        return parts[0]


class TokenClassification(_Found):
    """The entities of each text: its tokens, or words and groups of them with an `aggregation_strategy`."""

    options: Mapping[str, Callable[[Any], Any]] = {
        "aggregation_strategy": _one_of("none", "simple", "first", "average", "max"),
        "ignore_labels": lambda value: [] if value == [] else _names(value),
        "stride": _count,
        "truncate": _flag,
    }
    needs_offsets = True

    def __init__(self, model: TextModel, tokenizer: Any, graph: Shapes) -> None:
        super().__init__(model, tokenizer, graph)
        self.labels = _labels_of(model, graph[self.graph_outputs[0]])
        self._unknown = tokenizer.token_to_id(model.unknown_token) if model.unknown_token else None
        self._prefixes = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def _choose(self, graph: Shapes) -> list[str]:
        return [self._with_rank(graph, 3)]

    def parts(self, encoding: Any, options: Options) -> Sequence[Any]:
        most, stride = self._model.max_tokens, options.get("stride")
        if stride and options.get("aggregation_strategy", "none") == "none":
            raise InvalidRequest("the parameter 'stride' needs an aggregation_strategy other than none")
        room = most - sum(encoding.special_tokens_mask)
        if stride and stride >= room:
            raise InvalidRequest(
                f"the parameter 'stride' is {stride}, and a part has {room} tokens: it must be smaller"
            )
        if len(encoding) <= most:
            return [encoding]
        found = list(self._parts(encoding, 0, most, stride or 0))
        return found if stride else found[:1]

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        scores = activated(group.outputs[0], Activation.SOFTMAX)
        return [
            self._entities(each, scores[row], call.texts[at], call.options[at])
            for row, (at, each) in enumerate(zip(group.indices, group.encodings, strict=True))
        ]

    def _entities(self, encoding: Any, scores: Array, text: Text, options: Options) -> list[dict[str, Any]]:
        """As `TokenClassificationPipeline.postprocess` does for one part of a text."""
        strategy = options.get("aggregation_strategy", "none")
        whole = encoding.whole if isinstance(encoding, Part) else encoding
        words: list[list[dict[str, Any]]] = []
        for index, at in enumerate(encoding.indices if isinstance(encoding, Part) else range(len(encoding))):
            if whole.special_tokens_mask[at]:
                continue
            start, end = encoding.offsets(at) if isinstance(encoding, Part) else whole.offsets[at]
            word, written = self._tokenizer.id_to_token(whole.ids[at]), str(text)[start:end]
            if self._prefixes:
                is_subword = len(word) != len(written)
            else:
                is_subword = start > 0 and " " not in str(text)[start - 1 : start + 1]
            if whole.ids[at] == self._unknown:
                word, is_subword = written, False
            token = {"word": word, "scores": scores[index], "index": index, "start": start, "end": end}
            if words and is_subword and strategy in ("first", "average", "max"):
                words[-1].append(token)
            else:
                words.append([token])
        entities = [self._word(tokens, strategy) for tokens in words]
        ignored = options.get("ignore_labels", ["O"])
        if strategy == "none":
            return [each for each in entities if each["entity"] not in ignored]
        for each in entities:
            del each["index"]
        return [each for each in self._grouped(entities) if each["entity_group"] not in ignored]

    def _word(self, tokens: list[dict[str, Any]], strategy: str) -> dict[str, Any]:
        """The entity of a word's tokens, of which there are several only where the strategy joins them."""
        if strategy == "average":
            scores = np.mean([token["scores"] for token in tokens], axis=0)
        elif strategy == "max":
            scores = max(tokens, key=lambda token: float(token["scores"].max()))["scores"]
        else:
            scores = tokens[0]["scores"]
        best = int(scores.argmax())
        joined = strategy in ("first", "average", "max")
        return {
            "entity": self.labels[best],
            "score": float(scores[best]),
            "index": tokens[0]["index"],
            "word": self._joined([token["word"] for token in tokens]) if joined else tokens[0]["word"],
            "start": tokens[0]["start"],
            "end": tokens[-1]["end"],
        }

    def _grouped(self, entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
        groups: list[tuple[str, list[dict[str, Any]]]] = []
        for entity in entities:
            label = entity["entity"]
            begins, tag = label.startswith("B-"), label[2:] if label[:2] in ("B-", "I-") else label
            if groups and groups[-1][0] == tag and not begins:
                groups[-1][1].append(entity)
            else:
                groups.append((tag, [entity]))
        return [
            {
                "entity_group": found[0]["entity"].split("-", 1)[-1],
                "score": float(np.mean([each["score"] for each in found])),
                "word": self._joined([each["word"] for each in found]),
                "start": found[0]["start"],
                "end": found[-1]["end"],
            }
            for _, found in groups
        ]

    def _joined(self, tokens: list[str]) -> str:
        decoder = self._tokenizer.decoder
        return str(decoder.decode(tokens)) if decoder is not None else " ".join(tokens)

    def answer(self, parts: list[Any], at: int, call: TextCall) -> Any:
        """Join the entities of overlapping parts; of overlapping entities keep the longer or likelier one."""
        entities = [entity for part in parts for entity in part]
        if len(parts) == 1 or not entities:
            return entities
        entities.sort(key=lambda each: each["start"])
        found, previous = [], entities[0]
        for entity in entities:
            if not previous["start"] <= entity["start"] < previous["end"]:
                found.append(previous)
                previous = entity
            elif (entity["end"] - entity["start"], entity["score"]) > (
                previous["end"] - previous["start"],
                previous["score"],
            ):
                previous = entity
        return [*found, previous]


class FillMask(_Found):
    """The most likely words for the mask of each text; a list of them for each mask if there are several."""

    options: Mapping[str, Callable[[Any], Any]] = {"top_k": _count, "targets": _names, **_CUTS}

    def __init__(self, model: TextModel, tokenizer: Any, graph: Shapes) -> None:
        super().__init__(model, tokenizer, graph)
        if not model.mask_token or tokenizer.token_to_id(model.mask_token) is None:
            raise ModelLoadFailed(
                f"the tokenizer of text model '{model.name}' has no mask_token, which fill-mask needs",
                hint="name it in tokenizer_config.json",
                model=model.name,
            )
        self._mask_id = tokenizer.token_to_id(model.mask_token)
        self._pad_id = tokenizer.token_to_id(model.pad_token) if model.pad_token else None

    def _token_ids(self, words: Sequence[str]) -> Array:
        """The tokens of words; of other words the one that is left when they are cut, as transformers does."""
        cut = slice(-1, None) if self._model.truncation_side == "left" else slice(1)
        found = set()
        for word in words:
            known = self._tokenizer.token_to_id(word)
            ids = [known] if known is not None else self._tokenizer.encode(word, add_special_tokens=False).ids
            found |= set(ids[cut])
        if not found:
            raise InvalidRequest("the parameter 'targets' has no word that the tokenizer knows")
        return np.array(sorted(found))

    def _choose(self, graph: Shapes) -> list[str]:
        return [self._with_rank(graph, 3)]

    def _texts(self, feed: Mapping[str, Array], options: Sequence[Options]) -> Sequence[Text]:
        mask = self._model.mask_token
        # Whichever of the two a model has, both are understood.
        texts = [text if mask in text else _MASK.sub(lambda _: mask, text) for text in texts_of(feed["text"])]
        for at, text in enumerate(texts):
            if mask not in text:
                raise InvalidRequest(f"text {at} has no mask: write {mask} where a word is missing")
        return texts

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        rows = []
        for row, (at, encoding) in enumerate(zip(group.indices, group.encodings, strict=True)):
            ids = list(encoding.ids)
            masks = [position for position, token in enumerate(ids) if token == self._mask_id]
            if not masks:
                raise InvalidRequest(f"text {at} is cut before its mask: it has more than {len(ids)} tokens")
            logits = group.outputs[0]
            options = call.options[at]
            found = [self._words(ids, position, logits[row, position], options, len(masks)) for position in masks]
            rows.append(found[0] if len(found) == 1 else found)
        return rows

    def _words(
        self, ids: list[int], position: int, logits: Array, options: Options, masks: int
    ) -> list[dict[str, Any]]:
        scores = activated(logits, Activation.SOFTMAX)
        tokens = self._token_ids(options["targets"]) if "targets" in options else np.arange(len(scores))
        best = tokens[np.argsort(-scores[tokens], kind="stable")][: options.get("top_k", self._model.top_k)]
        found = []
        for token in best.tolist():
            sequence = [each for each in (*ids[:position], token, *ids[position + 1 :]) if each != self._pad_id]
            found.append(
                {
                    "score": float(scores[token]),
                    "token": token,
                    "token_str": self._decoded([token], skips_special=False),
                    "sequence": self._decoded(sequence, skips_special=masks == 1),
                }
            )
        return found

    def _decoded(self, ids: list[int], skips_special: bool) -> str:
        text = str(self._tokenizer.decode(ids, skip_special_tokens=skips_special))
        # BPE keeps the spaces of a text, so that transformers takes none out.
        if self._model.joins_punctuation and not isinstance(self._tokenizer.model, BPE):
            for spaced, joined in _JOINED:
                text = text.replace(spaced, joined)
        return text

    def trial(self) -> dict[str, Array]:
        return {"text": _column(self._model.mask_token, f"a {self._model.mask_token} a")}


class QuestionAnswering(_Found):
    """The parts of each context that answer the question. A long context is read in parts that overlap."""

    inputs = (TensorSignature("question", "BYTES", (-1, 1)), TensorSignature("context", "BYTES", (-1, 1)))
    options: Mapping[str, Callable[[Any], Any]] = {
        "top_k": _count,
        "doc_stride": _count,
        "max_answer_len": _count,
        "max_seq_len": _count,
        "max_question_len": _count,
        "handle_impossible_answer": _flag,
        "align_to_words": _flag,
    }
    needs_offsets = True
    cuts = "only_second"

    def __init__(self, model: TextModel, tokenizer: Any, graph: Shapes) -> None:
        super().__init__(model, tokenizer, graph)
        self._cls_id = tokenizer.token_to_id(model.cls_token) if model.cls_token else None

    def _choose(self, graph: Shapes) -> list[str]:
        names = ["start_logits", "end_logits"]
        return names if names[0] in graph and names[1] in graph else list(graph)[:2]

    def _texts(self, feed: Mapping[str, Array], options: Sequence[Options]) -> Sequence[Text]:
        return list(zip(texts_of(feed["question"]), texts_of(feed["context"]), strict=True))

    def parts(self, encoding: Any, options: Options) -> Sequence[Any]:
        most = options.get("max_seq_len", min(self._model.max_tokens, _QUESTION_TOKENS))
        stride = options.get("doc_stride", min(most // 2, _STRIDE))
        question = encoding.sequence_ids.count(0)
        if most > self._model.max_tokens or stride > most:
            raise InvalidRequest(
                f"max_seq_len is {most} and doc_stride {stride}: at most {self._model.max_tokens}, and at most that"
            )
        longest = options.get("max_question_len", question)
        if question > longest:
            raise InvalidRequest(f"the question has {question} tokens, more than max_question_len, {longest}")
        return list(self._parts(encoding, 1, most, stride))

    def rows(self, group: Group, call: TextCall) -> Sequence[Any]:
        starts, ends = group.outputs
        return [
            self._spans(part, starts[row], ends[row], call.texts[at][1], call.options[at])
            for row, (at, part) in enumerate(zip(group.indices, group.encodings, strict=True))
        ]

    def _spans(
        self, part: Part, start_logits: Array, end_logits: Array, context: Any, options: Options
    ) -> tuple[float, list[dict[str, Any]]]:
        """The score of no answer, and the likeliest answers, as transformers' `select_starts_ends` finds them."""
        whole, length = part.whole, len(part)
        # The first token belongs to the scores, too: some models point at it where nothing answers the question.
        allowed = np.array([whole.sequence_ids[at] == 1 or whole.ids[at] == self._cls_id for at in part.indices])
        starts, ends = (
            activated(np.where(allowed, logits[:length], -10000.0), Activation.SOFTMAX)
            for logits in (start_logits, end_logits)
        )
        nothing = float(starts[0] * ends[0])
        starts[0] = ends[0] = 0.0
        aligned = options.get("align_to_words", True)
        wanted = options.get("top_k", 1) * 2 + 10 if aligned else options.get("top_k", 1)
        scores = np.tril(np.triu(np.outer(starts, ends)), options.get("max_answer_len", 15) - 1)
        order = np.argsort(-scores, axis=None, kind="stable")[:wanted]
        found = []
        for first, last in zip(*np.unravel_index(order, scores.shape), strict=True):
            # The first token has no score here; it would be the place of every answer that is only space.
            if first == 0 or not (allowed[first] and allowed[last]):
                continue
            start, end = self._characters(part, int(first), int(last), aligned)
            score = float(scores[first, last])
            found.append({"score": score, "start": start, "end": end, "answer": context[start:end]})
        return nothing, found

    def _characters(self, part: Part, first: int, last: int, aligned: bool) -> tuple[int, int]:
        """Return the characters of tokens of `part` in the context; if `aligned`, of their words within `part`."""
        whole, indices = part.whole, part.indices
        words = [whole.word_ids[at] if whole.sequence_ids[at] == 1 else None for at in indices]
        if aligned and None not in (words[first], words[last]):
            first, last = words.index(words[first]), len(words) - 1 - words[::-1].index(words[last])
        return int(part.offsets(indices[first])[0]), int(part.offsets(indices[last])[1])

    def answer(self, parts: list[Any], at: int, call: TextCall) -> Any:
        """Answers with the same text count as one."""
        found: dict[str, dict[str, Any]] = {}
        for _, spans in parts:
            for span in spans:
                known = found.setdefault(span["answer"].lower(), span)
                if known is not span:
                    known["score"] += span["score"]
        answers = list(found.values())
        options = call.options[at]
        if options.get("handle_impossible_answer"):
            answers.append({"score": min(nothing for nothing, _ in parts), "start": 0, "end": 0, "answer": ""})
        most = options.get("top_k", 1)
        answers = sorted(answers, key=lambda each: -each["score"])[:most]
        return answers[0] if len(answers) == most == 1 else answers

    def trial(self) -> dict[str, Array]:
        return {"question": _column("a", "a"), "context": _column("a", "a a a")}


TASKS: Mapping[TaskName, type[Task]] = {
    TaskName.FEATURE_EXTRACTION: Embedding,
    TaskName.TEXT_CLASSIFICATION: Classification,
    TaskName.TOKEN_CLASSIFICATION: TokenClassification,
    TaskName.TEXT_RANKING: Ranking,
    TaskName.FILL_MASK: FillMask,
    TaskName.ZERO_SHOT_CLASSIFICATION: ZeroShot,
    TaskName.QUESTION_ANSWERING: QuestionAnswering,
}


def is_entailment(label: str) -> bool:
    return label.lower().startswith("entail")


def text_of(element: Any, at: int) -> str:
    """An element of a BYTES tensor as text. Raises InvalidRequest for what is not UTF-8."""
    try:
        return element.decode() if isinstance(element, bytes) else str(element)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"text {at} is not UTF-8: {error.reason} at byte {error.start}") from None


def texts_of(array: Array) -> list[str]:
    """The elements of a BYTES tensor as text. Raises InvalidRequest for what is not UTF-8."""
    return [text_of(element, at) for at, element in enumerate(array.ravel().tolist())]


def _column(*texts: str) -> Array:
    return bytes_array([text.encode() for text in texts], (len(texts), 1))


def _counts(tokens: Sequence[Any]) -> Array:
    return np.array(tokens, np.int32).reshape(-1, 1)


def _labels_of(model: TextModel, shape: Sequence[Any]) -> tuple[str, ...]:
    """A label for each score of the graph, whose count is in its shape or in the folder."""
    return labels_for(model.labels, shape[-1]) if isinstance(shape[-1], int) else model.labels


def activated(logits: Array, activation: Activation) -> Array:
    """Scores in FP32, along the last dimension."""
    values: Array = logits.astype(np.float32, copy=False)
    if activation is Activation.SOFTMAX:
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        values = powers / powers.sum(axis=-1, keepdims=True)
    elif activation is Activation.SIGMOID:
        values = 1 / (1 + np.exp(-np.clip(values, -80, 80)))
    return values
