"""Trains the classifier of `deploy/examples`: is a text English prose, or Python code?

    python deploy/train_text_classifier.py

It needs the `train` extra and no download. The texts are those of Python's standard library: paragraphs of docstrings
are prose, and runs of lines of the modules without their docstrings and comments are code. A fifth of the modules is
held out, as a whole, so that no module is on both sides. The network is an embedding of hashed words, their mean, and
two layers. The ONNX graph takes what the model `preprocess` makes: input_ids and attention_mask INT64 [N,64] -> logits
FP32 [N,2]. The same seed, Python and numpy give the same weights.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import sysconfig
import tokenize
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

EXAMPLES = Path(__file__).resolve().parent / "examples"
MODEL = EXAMPLES / "text_classifier"
LABELS = ("prose", "code")
PROSE, CODE = range(2)
SEED = 7
EMBEDDING, HIDDEN = 16, 16
EPOCHS, BATCH, RATE = 6, 256, 3e-3
TEXTS_PER_MODULE = 120
REQUIRED_ACCURACY = 0.97

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

CONFIG = """\
name: "text_classifier"
backend: "onnxruntime"
max_batch_size: 64
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ 64 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ 64 ] }
]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


class Texts(NamedTuple):
    """Encoded texts, 0 after their end, [N,64], and their classes [N]."""

    ids: Numbers
    classes: Numbers


def preprocess_model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("preprocess_model", EXAMPLES / "preprocess" / "1" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Name, source and syntax tree of each module of the standard library, without its tests."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        name = str(path.relative_to(library))
        if not {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(Path(name).parts):
            try:
                source = path.read_text(encoding="utf-8")
                yield name, source, ast.parse(source)
            except (SyntaxError, UnicodeDecodeError):
                continue


def prose_of(tree: ast.Module) -> Iterator[str]:
    """The paragraphs of docstrings. What is indented or has a prompt is no prose."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                is_example = paragraph.startswith((" ", ">>>", "..")) or "\n    " in paragraph or ">>>" in paragraph
                if len(paragraph.split()) >= 5 and not is_example:
                    yield paragraph


def code_of(source: str, lengths: np.random.Generator) -> Iterator[str]:
    """Runs of one to eight lines without comments and docstrings."""
    left_out: set[int] = set()
    previous = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type == tokenize.STRING and previous in (tokenize.INDENT, tokenize.NEWLINE, tokenize.NL)
        if token.type == tokenize.COMMENT or is_text:
            left_out.update(range(token.start[0], token.end[0] + 1))
        previous = token.type
    lines = [
        line
        for number, line in enumerate(source.splitlines(), start=1)
        if number not in left_out and len(line.strip()) > 3
    ]
    start = 0
    while start < len(lines):
        end = start + int(lengths.integers(1, 9))
        yield "\n".join(lines[start:end])
        start = end


def texts_of(encode: ModuleType) -> tuple[Texts, Texts]:
    """The texts to learn from, and those that are held out."""
    chance = np.random.default_rng(SEED)
    found: dict[bool, list[tuple[list[int], int]]] = {False: [], True: []}
    for name, source, tree in modules():
        is_held_out = zlib.crc32(name.encode()) % 5 == 0
        for kind, texts in ((PROSE, list(prose_of(tree))), (CODE, list(code_of(source, chance)))):
            kept = chance.permutation(len(texts))[:TEXTS_PER_MODULE]
            found[is_held_out] += [(encode.encode(texts[index]), kind) for index in kept]
    return tuple(_texts(found[side], encode.LENGTH) for side in (False, True))  # type: ignore[return-value]


def _texts(encoded: list[tuple[list[int], int]], length: int) -> Texts:
    ids = np.zeros((len(encoded), length), np.int64)
    for row, (numbers, _) in zip(ids, encoded, strict=True):
        row[: len(numbers)] = numbers
    return Texts(ids, np.array([kind for _, kind in encoded], np.int64))


class Network:
    """The mean of the embeddings of a text's words, a layer with ReLU, and a layer with a logit for each class."""

    def __init__(self, buckets: int) -> None:
        chance = np.random.default_rng(SEED)
        self.weights: dict[str, Floats] = {
            "embedding": chance.normal(0, 0.1, (buckets, EMBEDDING)).astype(np.float32),
            "hidden": chance.normal(0, 0.3, (EMBEDDING, HIDDEN)).astype(np.float32),
            "hidden_bias": np.zeros(HIDDEN, np.float32),
            "output": chance.normal(0, 0.3, (HIDDEN, len(LABELS))).astype(np.float32),
            "output_bias": np.zeros(len(LABELS), np.float32),
        }
        self._moments = {name: (np.zeros_like(each), np.zeros_like(each)) for name, each in self.weights.items()}
        self._steps = 0

    def logits(self, ids: Numbers) -> Floats:
        return self._forward(ids)[-1]

    def _forward(self, ids: Numbers) -> tuple[Floats, Floats, Floats, Floats]:
        weights = self.weights
        mask = (ids != 0).astype(np.float32)
        share = mask / np.maximum(mask.sum(1, keepdims=True), 1)
        mean = np.einsum("nl,nld->nd", share, weights["embedding"][ids])
        hidden = np.maximum(mean @ weights["hidden"] + weights["hidden_bias"], 0)
        return share, mean, hidden, hidden @ weights["output"] + weights["output_bias"]

    def learn(self, ids: Numbers, classes: Numbers) -> None:
        """One step of Adam."""
        share, mean, hidden, logits = self._forward(ids)
        odds = np.exp(logits - logits.max(1, keepdims=True))
        to_logits = odds / odds.sum(1, keepdims=True)
        to_logits[np.arange(len(classes)), classes] -= 1
        to_logits /= len(classes)
        to_hidden = (to_logits @ self.weights["output"].T) * (hidden > 0)
        to_mean = to_hidden @ self.weights["hidden"].T
        to_embedding = np.zeros_like(self.weights["embedding"])
        np.add.at(to_embedding, ids, share[:, :, None] * to_mean[:, None, :])
        self._steps += 1
        for name, gradient in (
            ("embedding", to_embedding),
            ("hidden", mean.T @ to_hidden),
            ("hidden_bias", to_hidden.sum(0)),
            ("output", hidden.T @ to_logits),
            ("output_bias", to_logits.sum(0)),
        ):
            first, second = self._moments[name]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            scale = np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
            self.weights[name] -= RATE * scale * first / (np.sqrt(second) + 1e-8)


def trained(texts: Texts, buckets: int) -> Network:
    network = Network(buckets)
    chance = np.random.default_rng(SEED)
    for _ in range(EPOCHS):
        order = chance.permutation(len(texts.classes))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            network.learn(texts.ids[chosen], texts.classes[chosen])
    return network


def to_onnx(network: Network, length: int) -> onnx.ModelProto:
    """INT64 input_ids and attention_mask [N,length] -> FP32 logits [N,2]."""
    constants = [numpy_helper.from_array(each.astype(np.float32), name) for name, each in network.weights.items()]
    constants += [
        numpy_helper.from_array(np.array([1], np.int64), "words"),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
        numpy_helper.from_array(np.array([1], np.float32), "one"),
    ]
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["embedded", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "words"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "words"], ["count"], keepdims=1),
        helper.make_node("Max", ["count", "one"], ["at_least_one"]),
        helper.make_node("Div", ["sum", "at_least_one"], ["mean"]),
        helper.make_node("Gemm", ["mean", "hidden", "hidden_bias"], ["hidden_sum"]),
        helper.make_node("Relu", ["hidden_sum"], ["hidden_layer"]),
        helper.make_node("Gemm", ["hidden_layer", "output", "output_bias"], ["logits"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["N", length])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", len(LABELS)])]
    graph = helper.make_graph(nodes, "text_classifier", inputs, outputs, constants)
    # Every ONNX Runtime since 1.13 reads IR 8 and opset 17.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    encode = preprocess_model()
    seen, held_out = texts_of(encode)
    network = trained(seen, encode.BUCKETS)
    right = network.logits(held_out.ids).argmax(1) == held_out.classes
    for kind, label in enumerate(LABELS):
        of_kind = held_out.classes == kind
        print(f"{label}: {right[of_kind].mean():.4f} of {of_kind.sum()} held-out texts are recognised")
    if right.mean() < REQUIRED_ACCURACY:
        raise SystemExit(f"less than {REQUIRED_ACCURACY}: nothing written")
    (MODEL / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(network, encode.LENGTH), MODEL / "1" / "model.onnx")
    (MODEL / "config.pbtxt").write_text(CONFIG)
    (MODEL / "labels.txt").write_text("\n".join(LABELS) + "\n")
    print(f"learned from {len(seen.classes)} texts; wrote {MODEL}")


if __name__ == "__main__":
    main()
