"""Ten models under a mixed load, for the pictures of the docs."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import good_document
from tests.project import ROOT

EXAMPLES = ("classify_text", "preprocess", "text_classifier", "stream_words", "running_mean")


def write_models(folder: Path) -> None:
    """Models beside `digits` and `simple`: the examples, and three of dense layers."""
    for name in EXAMPLES:
        shutil.copytree(ROOT / "deploy/examples" / name, folder / name)
    write_dense(folder / "iris", [4, 16, 3])
    write_dense(folder / "house_prices", [13, 512, 512, 1])
    write_dense(folder / "embeddings", [384, 2048, 2048, 384])


def write_dense(folder: Path, sizes: list[int]) -> None:
    """A model of dense layers, with a batch dimension and the dynamic batcher."""
    numbers = np.random.default_rng(len(sizes) + sizes[0])
    nodes, weights, last = [], [], "IN"
    for i, (size, following) in enumerate(itertools.pairwise(sizes)):
        weight = (numbers.standard_normal((size, following)) / size**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"W{i}"))
        made = "OUT" if i == len(sizes) - 2 else f"H{i}"
        nodes += [helper.make_node("MatMul", [last, f"W{i}"], [f"M{i}"]), helper.make_node("Tanh", [f"M{i}"], [made])]
        last = made
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("IN", sizes[0]), ("OUT", sizes[-1]))
    ]
    graph = helper.make_graph(nodes, "dense", tensors[:1], tensors[1:], weights)
    (folder / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text("max_batch_size: 32\ndynamic_batching { }\n")


def tensor(name: str, data: list[Any], shape: list[int], datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def documents(number: random.Random) -> list[tuple[float, str, Callable[[], dict[str, Any]]]]:
    """How often in a second each request is sent by one client, its path, and what makes its body."""
    digits = json.loads((ROOT / "deploy/digits/7.json").read_text())
    topics = ("the engine of my car", "a goal in the last minute", "rockets to the moon")

    def floats(size: int) -> Callable[[], dict[str, Any]]:
        return lambda: {"inputs": [tensor("IN", [number.random() for _ in range(size)], [1, size])]}

    def text() -> dict[str, Any]:
        return {"inputs": [tensor("raw_text", [number.choice(topics)], [1, 1], "BYTES")]}

    def mean() -> dict[str, Any]:
        once = {"sequence_id": number.randrange(1, 1 << 30), "sequence_start": True, "sequence_end": True}
        return {"parameters": once, "inputs": [tensor("value", [number.random()], [1, 1])]}

    return [
        (14.0, "digits/infer", lambda: digits),
        (6.0, "iris/infer", floats(4)),
        (4.0, "simple/infer", good_document),
        (3.0, "house_prices/infer", floats(13)),
        (4.0, "embeddings/infer", floats(384)),
        (2.0, "classify_text/infer", text),
        (0.5, "running_mean/infer", mean),
        (0.1, "stream_words/generate_stream", lambda: {"text": "one two three four"}),
        # What clients get wrong.
        (0.06, "iris/infer", floats(3)),
        (0.04, "iriss/infer", floats(4)),
    ]


@contextlib.contextmanager
def mixed_load(server: ServerProcess, clients: int = 3) -> Iterator[None]:
    """Send requests of all kinds until the end."""
    is_over = threading.Event()

    def keep_asking(seed: int, rate: float, path: str, make: Callable[[], dict[str, Any]]) -> None:
        pauses = random.Random(seed)
        while not is_over.is_set():
            server.request("POST", f"/v2/models/{path}", json.dumps(make()).encode())
            is_over.wait(pauses.expovariate(rate))

    threads = [
        threading.Thread(target=keep_asking, args=(100 * client + i, *each))
        for client in range(clients)
        for i, each in enumerate(documents(random.Random(client)))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
