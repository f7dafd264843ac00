"""Folders as the Hugging Face Hub has them, with models so small that a test can compute their answers itself.

A token's vector is its row in TABLE, whatever stands around it. The heads of the tasks are linear.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from trident.core.inference.tensors import Array

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, "good", "bad", "cat", "dog", "paris", "anna", "lives", "in", "who", "where", "this", "is", "about")
SIZE = 4
TABLE: Array = np.random.default_rng(7).normal(size=(len(WORDS), SIZE)).astype(np.float32)
LONGEST = 32


def ids_of(*texts: str) -> list[int]:
    """The tokens of a text, or of a pair of texts."""
    ids = [WORDS.index("[CLS]")]
    for text in texts:
        ids += [WORDS.index(word) if word in WORDS else 1 for word in text.lower().split()]
        ids.append(WORDS.index("[SEP]"))
    return ids


def vectors_of(*texts: str) -> Array:
    return np.asarray(TABLE[ids_of(*texts)])


def mean_of(*texts: str) -> Array:
    return np.asarray(vectors_of(*texts).mean(axis=0))


def head_of(labels: int) -> Array:
    """The weights of a head with so many outputs."""
    return np.random.default_rng(labels).normal(size=(SIZE, labels)).astype(np.float32)


def write_folder(
    folder: Path,
    architecture: str = "BertModel",
    *,
    labels: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    pooling: Mapping[str, Any] | None = None,
    graph: str = "onnx/model.onnx",
    longest: int = LONGEST,
) -> Path:
    """Write the folder of a model of `architecture`; with `pooling`, one of sentence-transformers that normalizes."""
    (folder / graph).parent.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_size": SIZE,
        "max_position_embeddings": longest,
        **({"id2label": dict(enumerate(labels))} if labels else {}),
        **(settings or {}),
    }
    _write(folder / "config.json", config)
    _write(folder / "tokenizer_config.json", {"pad_token": "[PAD]", "mask_token": {"content": "[MASK]"}})
    if pooling is not None:
        names = ("Transformer", "Pooling", "Normalize")
        _write(
            folder / "modules.json",
            [
                {"path": f"{at}_{name}" if at else "", "type": f"sentence_transformers.models.{name}"}
                for at, name in enumerate(names)
            ],
        )
        _write(folder / "1_Pooling" / "config.json", dict(pooling))
    _tokenizer().save(str(folder / "tokenizer.json"))
    onnx.save(_graph(architecture, max(2, len(labels)) if not labels else len(labels)), folder / graph)
    return folder


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _tokenizer() -> Any:
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def _graph(architecture: str, labels: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["hidden"])]
    weights = {"table": TABLE}
    outputs = {"last_hidden_state": ["batch", "sequence", SIZE]}
    if architecture.endswith("ForSequenceClassification"):
        weights |= {"head": head_of(labels), "axes": np.array([1]), "last": np.array([2])}
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
            helper.make_node("Mul", ["hidden", "column"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "axes"], ["sums"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "axes"], ["counts"], keepdims=1),
            helper.make_node("Div", ["sums", "counts"], ["mean"]),
            helper.make_node("MatMul", ["mean", "head"], ["logits"]),
        ]
        outputs = {"logits": ["batch", labels]}
    elif architecture.endswith(("ForTokenClassification", "ForMaskedLM")):
        is_masked = architecture.endswith("ForMaskedLM")
        weights["head"] = TABLE.T.copy() if is_masked else head_of(labels)
        nodes.append(helper.make_node("MatMul", ["hidden", "head"], ["logits"]))
        outputs = {"logits": ["batch", "sequence", weights["head"].shape[1]]}
    elif architecture.endswith("ForQuestionAnswering"):
        weights |= {"head": head_of(2), "last": np.array([2])}
        nodes += [
            helper.make_node("MatMul", ["hidden", "head"], ["both"]),
            helper.make_node("Split", ["both"], ["start", "end"], axis=2, num_outputs=2),
            helper.make_node("Squeeze", ["start", "last"], ["start_logits"]),
            helper.make_node("Squeeze", ["end", "last"], ["end_logits"]),
        ]
        outputs = {"start_logits": ["batch", "sequence"], "end_logits": ["batch", "sequence"]}
    else:
        nodes.append(helper.make_node("Identity", ["hidden"], ["last_hidden_state"]))
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
