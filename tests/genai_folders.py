"""Folders of ONNX Runtime GenAI, with models so small that a test knows what they generate.

The counting model goes on with the next word of WORDS. Its layer of attention keeps keys and values as a real one does,
and adds nothing to the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trident.core.inference.tensors import Array

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
END, PAD = "<end>", "<pad>"
TEMPLATE = "{{ bos_token }}{% for m in messages %} {{ m.content }}{% endfor %}{% if tools %}<tool_call>{% endif %}"
HEADS, HEAD_SIZE = 2, 16


def write_counter(folder: Path, *, context: int = 64, is_endless: bool = False, gpu: bool = False) -> Path:
    """Write the folder of a model that counts to twelve, and ends or, if it `is_endless`, begins again."""
    tokenizer = write_tokenizer(folder)
    ids = word_ids(tokenizer)
    size = tokenizer.get_vocab_size()
    head = np.zeros((size, size), np.float32)
    for at, follower in zip(ids, [*ids[1:], ids[0] if is_endless else tokenizer.token_to_id(END)], strict=True):
        head[at, follower] = 3
    write_model(folder, {"table": np.eye(size, dtype=np.float32) * 8, "head": head}, context=context, gain=0, gpu=gpu)
    return folder


def write_adapter(folder: Path) -> None:
    """Write the adapter `backwards`, with which the counting model counts down."""
    ids = word_ids(Tokenizer.from_file(str(folder / "tokenizer.json")))
    size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    change = np.zeros((size, size), np.float32)
    for at, follower in zip(ids[1:], ids, strict=False):
        change[at, follower] = 9
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({"lora": onnxruntime.OrtValue.ortvalue_from_numpy(change)})
    adapter.export_adapter(str(folder / "backwards.onnx_adapter"))


def word_ids(tokenizer: Any) -> list[int]:
    """The token of each word with the space before it."""
    return [tokenizer.encode(f" {word}").ids[0] for word in WORDS]


def write_tokenizer(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=[END, PAD], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([" ".join(("", *WORDS))] * 10, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "pad_token": PAD, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def write_model(
    folder: Path,
    weights: Mapping[str, Array],
    *,
    context: int,
    layers: int = 1,
    kv_heads: int = 1,
    gain: float = 1,
    gpu: bool = False,
) -> None:
    """Write a graph of `layers` layers and its configuration.

    `weights` are the vectors of tokens (`table`) and what makes logits of vectors (`head`); the layers' own are random,
    and what they add is multiplied by `gain`. On a GPU the attention takes half precision only.
    """
    hidden, vocabulary = weights["head"].shape
    graph = _graph(weights, context, layers, kv_heads, gain, np.dtype(np.float16 if gpu else np.float32))
    onnx.save(graph, folder / "model.onnx")
    decoder = {
        "session_options": {"provider_options": [{"cuda": {}}] if gpu else []},
        "filename": "model.onnx",
        "head_size": HEAD_SIZE,
        "hidden_size": hidden,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
    }
    model = {
        "type": "llama",
        "context_length": context,
        "vocab_size": vocabulary,
        "bos_token_id": 0,
        "eos_token_id": [0],
        "pad_token_id": 1,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": context, "past_present_share_buffer": True, "top_k": 50, "top_p": 1.0}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}))


def _graph(
    weights: Mapping[str, Array], context: int, layers: int, kv_heads: int, gain: float, dtype: np.dtype[Any]
) -> onnx.ModelProto:
    hidden, vocabulary = weights["head"].shape
    random = np.random.default_rng(3)
    angles = np.outer(np.arange(context), 10000.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE))
    made: dict[str, Array] = {
        **{name: array.astype(dtype) for name, array in weights.items()},
        "lora": np.zeros((hidden, vocabulary), dtype),
        "one": np.array([1]),
        "last": np.array(1),
        "cosines": np.cos(angles).astype(dtype),
        "sines": np.sin(angles).astype(dtype),
    }
    nodes: list[Any] = []

    def add(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def multiply(vectors: str, output: str, rows: int, columns: int, scale: float = 1) -> str:
        made[f"{output}_weights"] = (random.normal(size=(rows, columns)) * scale / rows**0.5).astype(dtype)
        return add("MatMul", [vectors, f"{output}_weights"], output)

    def normal(vectors: str, output: str) -> str:
        made[f"{output}_weights"] = np.ones(hidden, dtype)
        inputs = [vectors, f"{output}_weights"]
        return add("SimplifiedLayerNormalization", inputs, output, axis=-1, epsilon=1e-5)

    add("ReduceSum", ["attention_mask", "one"], "counts", keepdims=0)
    add("Cast", [add("Sub", ["counts", "one"], "lasts")], "lengths", to=TensorProto.INT32)
    add("Gather", [add("Shape", ["attention_mask"], "shape"), "last"], "width")
    add("Cast", ["width"], "total", to=TensorProto.INT32)
    vectors = add("Gather", ["table", "input_ids"], "vectors")
    for layer in range(layers):
        packed = multiply(normal(vectors, f"n{layer}"), f"qkv{layer}", hidden, (HEADS + 2 * kv_heads) * HEAD_SIZE)
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [packed, "", "", *past, "lengths", "total", "cosines", "sines"],
                [f"a{layer}", f"present.{layer}.key", f"present.{layer}.value"],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=kv_heads,
                do_rotary=1,
            )
        )
        vectors = add(
            "Add", [vectors, multiply(f"a{layer}", f"o{layer}", HEADS * HEAD_SIZE, hidden, gain)], f"x{layer}"
        )
        wide = add("Relu", [multiply(normal(vectors, f"m{layer}"), f"up{layer}", hidden, 4 * hidden)], f"r{layer}")
        vectors = add("Add", [vectors, multiply(wide, f"down{layer}", 4 * hidden, hidden, gain)], f"y{layer}")
    add("MatMul", [vectors, add("Add", ["head", "lora"], "adapted")], "logits")
    kept = {
        f"{{}}.{layer}.{kind}": ["batch", kv_heads, "length", HEAD_SIZE]
        for layer in range(layers)
        for kind in ("key", "value")
    }
    tensors = {**{name.format("past_key_values"): shape for name, shape in kept.items()}, "lora": [hidden, vocabulary]}
    results = {"logits": ["batch", "tokens", vocabulary], **{n.format("present"): s for n, s in kept.items()}}
    ids, kind = ("input_ids", "attention_mask"), helper.np_dtype_to_tensor_dtype(dtype)
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", f"{name}_length"]) for name in ids]
        + [helper.make_tensor_value_info(name, kind, shape) for name, shape in tensors.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in results.items()],
        [numpy_helper.from_array(array, name) for name, array in made.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
