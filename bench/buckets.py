"""Print what batch buckets cost and save on this machine: CPU time per text of a small transformer, by its buckets.

    python -m bench.buckets                         about a minute
    python -m bench.buckets --columns 256 --backend openvino

Texts have 5 to 128 tokens. Without buckets each runs alone, because no other has its shape; with buckets those of a
window of 16 that have the same bucket run together. Buckets are warmed before, as the server does. In the first round
every other shape is new; of the later ones, in which the configurations take turns, the fastest counts, so that other
work on the machine matters little.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper

from bench.results import number, positive, table
from trident.core.backends.backend import Backend, BackendInstance, LoadContext
from trident.core.backends.onnxruntime.backend import make_backend as make_onnx_backend
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.request_check import RequestValidator
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.config.warmup import bucket_samples
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.scheduling.execution import run_once

LAYERS, TOKENS, CLASSES = 4, 1000, 8
TEXTS, ROUNDS, WINDOW = 320, 6, 16
LONGEST = 128
CONFIG = f"""
name: "transformer" max_batch_size: {WINDOW}
input [ {{ name: "IDS" data_type: TYPE_INT64 dims: -1 }}, {{ name: "MASK" data_type: TYPE_INT64 dims: -1 }} ]
output {{ name: "CLASSES" data_type: TYPE_FP32 dims: [ -1, {CLASSES} ] }}
"""
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "none, every text alone": {},
    "lengths 8, 16, 24 … 128": {"LENGTH_BUCKETS": ",".join(map(str, range(8, LONGEST + 1, 8)))},
    "lengths 16, 32, 64, 128": {"LENGTH_BUCKETS": "16,32,64,128"},
    "the same, and 1, 2, 4, 8, 16 rows": {"LENGTH_BUCKETS": "16,32,64,128", "BATCH_BUCKETS": "1,2,4,8,16"},
}


@dataclass(frozen=True, slots=True)
class Round:
    """The CPU time of all texts, and what ran."""

    seconds: float
    executions: int
    padding: float


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model with one instance."""

    spec: ModelSpec
    instance: BackendInstance


def transformer(columns: int) -> bytes:
    """IDS and MASK INT64 [batch, length] -> CLASSES FP32 [batch, length, 8], with random weights."""
    random_numbers = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array(1e9, np.float32), "much"),
        numpy_helper.from_array(np.array([1], np.int64), "rows"),
    ]

    def weight(name: str, *shape: int) -> str:
        values = random_numbers.standard_normal(shape) / columns**0.5
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    nodes = [
        helper.make_node("Gather", [weight("embeddings", TOKENS, columns), "IDS"], ["x0"]),
        helper.make_node("Cast", ["MASK"], ["present"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["present", "one"], ["absent"]),
        helper.make_node("Mul", ["absent", "much"], ["lowered"]),
        helper.make_node("Unsqueeze", ["lowered", "rows"], ["bias"]),
    ]
    for n in range(LAYERS):
        x = f"x{n}"
        nodes += [helper.make_node("MatMul", [x, weight(f"w{k}{n}", columns, columns)], [f"{k}{n}"]) for k in "qkv"]
        nodes += [
            helper.make_node("Transpose", [f"k{n}"], [f"t{n}"], perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"q{n}", f"t{n}"], [f"scores{n}"]),
            helper.make_node("Add", [f"scores{n}", "bias"], [f"masked{n}"]),
            helper.make_node("Softmax", [f"masked{n}"], [f"attention{n}"], axis=-1),
            helper.make_node("MatMul", [f"attention{n}", f"v{n}"], [f"seen{n}"]),
            helper.make_node("Add", [f"seen{n}", x], [f"sum{n}"]),
            helper.make_node("MatMul", [f"sum{n}", weight(f"wide{n}", columns, 4 * columns)], [f"hidden{n}"]),
            helper.make_node("Relu", [f"hidden{n}"], [f"active{n}"]),
            helper.make_node("MatMul", [f"active{n}", weight(f"narrow{n}", 4 * columns, columns)], [f"out{n}"]),
            helper.make_node("Tanh", [f"out{n}"], [f"x{n + 1}"]),
        ]
    nodes.append(helper.make_node("MatMul", [f"x{LAYERS}", weight("head", columns, CLASSES)], ["CLASSES"]))
    shape = ["batch", "length"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("IDS", "MASK")]
    output = helper.make_tensor_value_info("CLASSES", TensorProto.FLOAT, [*shape, CLASSES])
    graph = helper.make_graph(nodes, "transformer", inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def backend_of(name: str, folder: Path) -> Backend:
    """The backend, with the graph at `folder` in its format."""
    if name == "onnxruntime":
        return make_onnx_backend({})
    import openvino

    from trident.core.backends.openvino.backend import OpenVinoBackend

    openvino.save_model(openvino.Core().read_model(folder / "model.onnx"), folder / "model.xml", compress_to_fp16=False)
    return OpenVinoBackend()


@contextmanager
def served(graph: bytes, buckets: dict[str, str], backend: str) -> Iterator[Served]:
    """The model on one thread, its buckets warmed."""
    values = {**buckets, "LENGTH_OUTPUTS": "CLASSES"} if buckets else {}
    parameters = [f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in values.items()]
    config = text_format.Parse("\n".join([CONFIG, *parameters]), ModelConfig())
    config.backend = backend
    spec, placement = resolve_model_spec(config, 1, {}), Placement("transformer_0", DeviceKind.CPU)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.onnx").write_bytes(graph)
        context = LoadContext(path=Path(folder), config=config, spec=spec, placements=(placement,), threads=1)
        model = backend_of(backend, Path(folder)).load(context)
        instance = model.instance(placement)
        check = RequestValidator(spec).check
        try:
            for sample in bucket_samples(spec, []):
                run_once(instance, [sample.request(spec) for _ in range(sample.batch_size)], check)
            yield Served(spec, instance)
        finally:
            instance.close()
            model.close()


def text_of(length: int) -> InferenceRequest:
    ones = np.ones((1, length), np.int64)
    return InferenceRequest("transformer", [InputTensor(name, "INT64", ones.shape, ones) for name in ("IDS", "MASK")])


def batches(model: Served, lengths: Sequence[int]) -> list[list[InferenceRequest]]:
    """What a queue of 16 texts becomes: those with the same batch key together."""
    validator = RequestValidator(model.spec)
    made: list[list[InferenceRequest]] = []
    for start in range(0, len(lengths), WINDOW):
        together: dict[object, list[InferenceRequest]] = {}
        for length in lengths[start : start + WINDOW]:
            request = text_of(length)
            together.setdefault(validator.check(request)[1], []).append(request)
        made += together.values()
    if model.spec.buckets is None:  # nearly every text has its own shape; a pair by chance is not what is measured
        return [[request] for batch in made for request in batch]
    return made


def measured(model: Served, lengths: Sequence[int]) -> Round:
    work = batches(model, lengths)
    elements = padding = 0
    start = time.process_time()
    for batch in work:
        execution = model.instance.execute(batch, [1] * len(batch))
        if execution.bucket is not None:
            elements += execution.bucket.elements
            padding += execution.bucket.padding
    seconds = time.process_time() - start
    return Round(seconds, len(work), padding / (elements + padding) if padding else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.buckets", description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--columns", type=positive, default=64, help="the width of the transformer (64)")
    parser.add_argument("--backend", choices=("onnxruntime", "openvino"), default="onnxruntime", help="(onnxruntime)")
    arguments = parser.parse_args()
    numbers = random.Random(1)
    lengths = [numbers.randint(5, LONGEST) for _ in range(TEXTS)]
    graph = transformer(arguments.columns)
    with ExitStack() as stack:
        models = {name: stack.enter_context(served(graph, b, arguments.backend)) for name, b in CONFIGURATIONS.items()}
        rounds = [{name: measured(model, lengths) for name, model in models.items()} for _ in range(ROUNDS)]
    fastest = {name: min((each[name] for each in rounds[1:]), key=lambda one: one.seconds) for name in models}
    base = next(iter(fastest.values())).seconds
    rows = [
        [
            name,
            number(rounds[0][name].seconds / TEXTS * 1e6),
            number(best.seconds / TEXTS * 1e6),
            f"{best.seconds / base:.2f}",
            f"{TEXTS / best.executions:.1f}",
            f"{best.padding:.0%}",
        ]
        for name, best in fastest.items()
    ]
    print(table(("buckets", "CPU µs per text, new shapes", "later", "ratio", "texts in a batch", "padding"), rows))


if __name__ == "__main__":
    main()
