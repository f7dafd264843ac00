"""Text models and their tasks: the tensors of a request, the texts that the graph sees, what is made of its results.

The answers are those of transformers' pipelines and of sentence-transformers for the same folder. Those of tasks that
find parts of a text are JSON, in the pipelines' form.
Source: docs/text-models.md; the documentation of transformers' pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from trident.core.config.problem import TensorSignature
from trident.core.errors import InvalidRequest, ModelLoadFailed
from trident.core.inference.tensors import Array, bytes_array


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


IDS = b"\xffids"
"""Begins an element that is token ids, INT32 in little-endian order. No UTF-8 text has its first byte."""
Text = str | tuple[str, str] | list[int]
# What a graph may call the vectors of whole texts, where it has the pooling itself.
_POOLED = ("sentence_embedding", "text_embeds")
_TOKENS = TensorSignature("tokens", "INT32", (-1, 1))
_MASK = re.compile(r"\[MASK\]|<mask>")
_LONGEST_ANSWER = 15
"""Tokens of an answer to a question, as in transformers."""
STRIDE = 128
"""Tokens that two parts of a long context share, as in transformers."""


@dataclass(frozen=True, slots=True)
class Group:
    """Texts that the graph has run together. `mask` is 1 where a row has a token, `outputs` are in the task's order."""

    encodings: Sequence[Any]
    mask: Array
    outputs: Sequence[Array]


class Task:
    """One task of one model. `rows` is called on the instance's thread, the others on any.

    `graph_outputs` are the outputs that it takes from the graph. `needs_offsets`: it says where in a text it has found
    something. `splits`: texts that are too long are run in parts.
    """

    inputs: tuple[TensorSignature, ...] = (TensorSignature("text", "BYTES", (-1, 1)),)
    outputs: tuple[TensorSignature, ...]
    needs_offsets = False
    splits = False

    def __init__(self, model: TextModel, tokenizer: Any, graph_outputs: Mapping[str, int]) -> None:
        """`graph_outputs` are the ranks of the graph's outputs by name. Raises ModelLoadFailed if they do not fit."""
        self._model = model
        self._tokenizer = tokenizer
        self.graph_outputs = self._choose(graph_outputs)

    def texts(self, feed: Mapping[str, Array]) -> list[Text]:
        """The texts of a batch, in any number for each item. Raises InvalidRequest."""
        return [*texts_of(feed["text"], self._model.prompt)]

    def rows(self, group: Group) -> Sequence[Any]:
        """The result for each text of `group`."""
        raise NotImplementedError

    def tensors(self, rows: list[Any], feed: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for the results of all texts of a batch, in their order."""
        raise NotImplementedError

    def _choose(self, graph_outputs: Mapping[str, int]) -> list[str]:
        return [self._one_of(graph_outputs, 2)]

    def _one_of(self, graph_outputs: Mapping[str, int], rank: int) -> str:
        for name, each in graph_outputs.items():
            if each == rank:
                return name
        raise ModelLoadFailed(
            f"the graph {self._model.file} has no output of {rank} dimensions, which {self._model.task.value} needs: "
            f"its outputs are {', '.join(graph_outputs)}",
            hint=f"export the model for this task, or set the parameter task (now {self._model.task.value})",
        )


class Embedding(Task):
    """`embedding`: one vector for each text, or for each list of token ids, and `tokens`: how many tokens it has."""

    def __init__(self, model: TextModel, tokenizer: Any, graph_outputs: Mapping[str, int]) -> None:
        super().__init__(model, tokenizer, graph_outputs)
        self.outputs = (TensorSignature("embedding", "FP32", (-1, model.hidden_size)), _TOKENS)
        self._is_pooled = graph_outputs[self.graph_outputs[0]] == 2
        prompt = model.prompt and tokenizer.encode(model.prompt, add_special_tokens=False).ids
        self._prompt_ids = list(prompt)
        self._vocabulary = tokenizer.get_vocab_size()

    def texts(self, feed: Mapping[str, Array]) -> list[Text]:
        elements = feed["text"].ravel().tolist()
        found = {
            at: self._ids(element.removeprefix(IDS), at)
            for at, element in enumerate(elements)
            if isinstance(element, bytes) and element.startswith(IDS)
        }
        if not found:
            return super().texts(feed)
        written = np.array([b"" if at in found else element for at, element in enumerate(elements)], np.object_)
        return [found.get(at, text) for at, text in enumerate(texts_of(written, self._model.prompt))]

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
        return [*self._prompt_ids, *ids.tolist()]

    def _choose(self, graph_outputs: Mapping[str, int]) -> list[str]:
        pooled = [name for name in _POOLED if graph_outputs.get(name) == 2]
        return pooled[:1] or [self._one_of(graph_outputs, 3)]

    def rows(self, group: Group) -> Sequence[Any]:
        vectors = group.outputs[0]
        pooled = vectors if self._is_pooled else pool(vectors, group.mask, self._model.pooling)
        if self._model.normalize:
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return list(zip(pooled.astype(np.float32, copy=False), group.mask.sum(axis=1), strict=True))

    def tensors(self, rows: list[Any], feed: Mapping[str, Array]) -> dict[str, Array]:
        vectors, tokens = zip(*rows, strict=True)
        return {"embedding": np.stack(vectors), "tokens": _counts(tokens)}


class Classification(Task):
    """`scores`: of each label. Triton's classification extension gives the labels with them."""

    def __init__(self, model: TextModel, tokenizer: Any, graph_outputs: Mapping[str, int]) -> None:
        super().__init__(model, tokenizer, graph_outputs)
        self.outputs = (TensorSignature("scores", "FP32", (-1, len(model.labels))),)

    def rows(self, group: Group) -> Sequence[Any]:
        return list(activated(group.outputs[0], self._model.activation))

    def tensors(self, rows: list[Any], feed: Mapping[str, Array]) -> dict[str, Array]:
        return {"scores": np.stack(rows)}


class Ranking(Task):
    """`score`: how well a text answers a query, and `tokens`: how many tokens both have."""

    inputs = (TensorSignature("query", "BYTES", (-1, 1)), TensorSignature("text", "BYTES", (-1, 1)))
    outputs = (TensorSignature("score", "FP32", (-1, 1)), _TOKENS)

    def texts(self, feed: Mapping[str, Array]) -> list[Text]:
        return list(zip(texts_of(feed["query"]), texts_of(feed["text"]), strict=True))

    def rows(self, group: Group) -> Sequence[Any]:
        return list(zip(activated(group.outputs[0], self._model.activation), group.mask.sum(axis=1), strict=True))

    def tensors(self, rows: list[Any], feed: Mapping[str, Array]) -> dict[str, Array]:
        scores, tokens = zip(*rows, strict=True)
        return {"score": np.stack(scores)[:, -1:], "tokens": _counts(tokens)}


class ZeroShot(Task):
    """`scores`: of each of the request's own labels, by a model that was trained on entailment.

    With the activation sigmoid each label is judged by itself, otherwise the scores of a text's labels sum to 1.
    """

    inputs = (TensorSignature("text", "BYTES", (-1, 1)), TensorSignature("candidate_labels", "BYTES", (-1, -1)))
    outputs = (TensorSignature("scores", "FP32", (-1, -1)),)

    def __init__(self, model: TextModel, tokenizer: Any, graph_outputs: Mapping[str, int]) -> None:
        super().__init__(model, tokenizer, graph_outputs)
        self._entailment = next((at for at, label in enumerate(model.labels) if is_entailment(label)), -1)
        self._contradiction = 0 if self._entailment != 0 else -1

    def texts(self, feed: Mapping[str, Array]) -> list[Text]:
        texts = texts_of(feed["text"])
        labels = texts_of(feed["candidate_labels"])
        if not labels:
            raise InvalidRequest("candidate_labels is empty: at least one label is needed")
        each = len(labels) // len(texts)
        hypothesis = self._model.hypothesis
        return [
            (text, hypothesis.replace("{}", label))
            for at, text in enumerate(texts)
            for label in labels[at * each : (at + 1) * each]
        ]

    def rows(self, group: Group) -> Sequence[Any]:
        return list(group.outputs[0])

    def tensors(self, rows: list[Any], feed: Mapping[str, Array]) -> dict[str, Array]:
        logits = np.stack(rows).reshape(len(feed["text"]), -1, len(self._model.labels))
        entailment = logits[:, :, self._entailment]
        if self._model.activation is Activation.SIGMOID:
            pairs = np.stack([logits[:, :, self._contradiction], entailment], axis=-1)
            return {"scores": activated(pairs, Activation.SOFTMAX)[..., 1]}
        return {"scores": activated(entailment, Activation.SOFTMAX)}


class _Found(Task):
    """`answer`: JSON for each text."""

    outputs = (TensorSignature("answer", "BYTES", (-1, 1)),)

    def tensors(self, rows: list[Any], feed: Mapping[str, Array]) -> dict[str, Array]:
        return {"answer": bytes_array([orjson.dumps(row) for row in rows], (len(rows), 1))}


class TokenClassification(_Found):
    """The entities of each text, joined as transformers does with `aggregation_strategy="simple"`."""

    needs_offsets = True

    def _choose(self, graph_outputs: Mapping[str, int]) -> list[str]:
        return [self._one_of(graph_outputs, 3)]

    def rows(self, group: Group) -> Sequence[Any]:
        scores = activated(group.outputs[0], Activation.SOFTMAX)
        return [self._entities(encoding, scores[at]) for at, encoding in enumerate(group.encodings)]

    def _entities(self, encoding: Any, scores: Array) -> list[dict[str, Any]]:
        best = scores.argmax(axis=-1)
        found: list[tuple[str, list[int]]] = []
        for at, special in enumerate(encoding.special_tokens_mask):
            if special:
                continue
            label = self._model.labels[best[at]]
            starts, tag = label.startswith("B-"), label[2:] if label[:2] in ("B-", "I-") else label
            if found and found[-1][0] == tag and not starts:
                found[-1][1].append(at)
            else:
                found.append((tag, [at]))
        return [
            {
                "entity_group": tag,
                "score": float(np.mean([scores[at, best[at]] for at in tokens])),
                "word": self._tokenizer.decode([encoding.ids[at] for at in tokens]),
                "start": encoding.offsets[tokens[0]][0],
                "end": encoding.offsets[tokens[-1]][1],
            }
            for tag, tokens in found
            if tag != "O"
        ]


class FillMask(_Found):
    """The most likely words for the mask of each text; a list of them for each mask if there are several."""

    def _choose(self, graph_outputs: Mapping[str, int]) -> list[str]:
        return [self._one_of(graph_outputs, 3)]

    def texts(self, feed: Mapping[str, Array]) -> list[Text]:
        mask = self._model.mask_token
        # Whichever of the two a model has, both are understood.
        texts = [text if mask in text else _MASK.sub(lambda _: mask, text) for text in texts_of(feed["text"])]
        for at, text in enumerate(texts):
            if mask not in text:
                raise InvalidRequest(f"text {at} has no mask: write {mask} where a word is missing")
        return [*texts]

    def rows(self, group: Group) -> Sequence[Any]:
        mask_id = self._tokenizer.token_to_id(self._model.mask_token)
        rows = []
        for at, encoding in enumerate(group.encodings):
            ids = list(encoding.ids)
            masks = [position for position, token in enumerate(ids) if token == mask_id]
            found = [self._words(ids, position, group.outputs[0][at, position]) for position in masks]
            rows.append(found[0] if len(found) == 1 else found)
        return rows

    def _words(self, ids: list[int], position: int, logits: Array) -> list[dict[str, Any]]:
        scores = activated(logits, Activation.SOFTMAX)
        decode = self._tokenizer.decode
        return [
            {
                "score": float(scores[token]),
                "token": int(token),
                "token_str": decode([int(token)], skip_special_tokens=False),
                "sequence": decode([*ids[:position], int(token), *ids[position + 1 :]]),
            }
            for token in np.argsort(-scores)[: self._model.top_k]
        ]


class QuestionAnswering(_Found):
    """The part of each context that answers the question. A long context is read in parts that overlap."""

    inputs = (TensorSignature("question", "BYTES", (-1, 1)), TensorSignature("context", "BYTES", (-1, 1)))
    needs_offsets = True
    splits = True

    def _choose(self, graph_outputs: Mapping[str, int]) -> list[str]:
        names = ["start_logits", "end_logits"]
        return names if names[0] in graph_outputs and names[1] in graph_outputs else list(graph_outputs)[:2]

    def texts(self, feed: Mapping[str, Array]) -> list[Text]:
        return list(zip(texts_of(feed["question"]), texts_of(feed["context"]), strict=True))

    def rows(self, group: Group) -> Sequence[Any]:
        starts, ends = group.outputs
        return [self._best(encoding, starts[at], ends[at]) for at, encoding in enumerate(group.encodings)]

    def tensors(self, rows: list[Any], feed: Mapping[str, Array]) -> dict[str, Array]:
        """`rows` are the best answers of the parts of each context."""
        answers = []
        for parts, context in zip(rows, texts_of(feed["context"]), strict=True):
            score, start, end = max(parts)
            answers.append({"score": score, "start": start, "end": end, "answer": context[start:end]})
        return super().tensors(answers, feed)

    def _best(self, encoding: Any, start_logits: Array, end_logits: Array) -> tuple[float, int, int]:
        """The score, and the first and last character in the context."""
        length = len(encoding.ids)
        is_context = np.array([each == 1 for each in encoding.sequence_ids])
        if not is_context.any():
            return 0.0, 0, 0
        starts, ends = (
            activated(np.where(is_context, logits[:length], -np.inf), Activation.SOFTMAX)
            for logits in (start_logits, end_logits)
        )
        scores = np.tril(np.triu(np.outer(starts, ends)), _LONGEST_ANSWER - 1)
        first, last = np.unravel_index(scores.argmax(), scores.shape)
        return float(scores[first, last]), encoding.offsets[first][0], encoding.offsets[last][1]


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


def texts_of(array: Array, prompt: str = "") -> list[str]:
    """The elements of a BYTES tensor as text, after `prompt`. Raises InvalidRequest for what is not UTF-8."""
    texts = []
    for at, element in enumerate(array.ravel().tolist()):
        try:
            texts.append(prompt + (element.decode() if isinstance(element, bytes) else element))
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"text {at} is not UTF-8: {error.reason} at byte {error.start}") from None
    return texts


def _counts(tokens: Sequence[Any]) -> Array:
    return np.array(tokens, np.int32).reshape(-1, 1)


def pool(vectors: Array, mask: Array, pooling: Pooling) -> Array:
    """One vector [text, size] for each text of `vectors` [text, token, size]."""
    pooled: Array
    if pooling is Pooling.CLS:
        pooled = vectors[:, 0]
    elif pooling is Pooling.LAST_TOKEN:
        pooled = vectors[np.arange(len(vectors)), mask.sum(axis=1) - 1]
    elif pooling is Pooling.MAX:
        pooled = np.where(mask[:, :, None] == 1, vectors, -np.inf).max(axis=1)
    else:
        weights = mask.astype(np.float32)
        sums = np.matmul(weights[:, None, :], vectors.astype(np.float32, copy=False))[:, 0]
        pooled = sums / np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    return pooled


def activated(logits: Array, activation: Activation) -> Array:
    """Scores in FP32, along the last dimension."""
    values: Array = logits.astype(np.float32, copy=False)
    if activation is Activation.SOFTMAX:
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        values = powers / powers.sum(axis=-1, keepdims=True)
    elif activation is Activation.SIGMOID:
        values = 1 / (1 + np.exp(-np.clip(values, -80, 80)))
    return values
