"""Batches over ONNX: ragged inputs, the inputs that describe a batch, outputs that are cut by an input's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.held import Sender, counts, document, infer, refusal, tensors
from tests.unit.onnx_models import (
    build,
    constant,
    identity,
    packed_embeddings,
    ragged_item_shapes,
    tensor,
    write_version,
)

KINDS = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)
FOUR = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100000000 }"
ONE = "instance_group { count: 1 kind: KIND_CPU }"
BATCH_INPUT = 'batch_input {{ kind: {} target_name: "{}" data_type: TYPE_{} source_input: "{}" }} '
SCATTER = "batch_output {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: '{}' source_input: '{}' }} "
RAGGED = tensors("input", "INPUT0 FP32 -1 allow_ragged_batch: true")
RAGGED_PLANE = tensors("input", "INPUT0 FP32 -1,-1 allow_ragged_batch: true")


def described(datatype: str, rank: int) -> onnx.ModelProto:
    """INPUT0 FP32 [n], ITEMS INT32 [items, r], DESCRIPTION -> for each item SEEN (INPUT0), DESCRIBED and its SHAPE."""
    return build(
        [
            helper.make_node("Shape", ["ITEMS"], ["items"], end=1),
            helper.make_node("Concat", ["items", "one"], ["times"], axis=0),
            helper.make_node("Reshape", ["INPUT0", "row"], ["input_row"]),
            helper.make_node("Tile", ["input_row", "times"], ["SEEN"]),
            helper.make_node("Cast", ["DESCRIPTION"], ["numbers"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Reshape", ["numbers", "row"], ["description_row"]),
            helper.make_node("Tile", ["description_row", "times"], ["DESCRIBED"]),
            helper.make_node("Shape", ["DESCRIPTION"], ["shape"]),
            helper.make_node("Reshape", ["shape", "row"], ["shape_row"]),
            helper.make_node("Tile", ["shape_row", "times"], ["SHAPE"]),
        ],
        [
            tensor("INPUT0", "FP32", ["n"]),
            tensor("ITEMS", "INT32", ["items", "r"]),
            tensor("DESCRIPTION", datatype, [f"d{each}" for each in range(rank)]),
        ],
        [
            tensor("SEEN", "FP32", ["items", "n"]),
            tensor("DESCRIBED", "FP32", ["items", "d"]),
            tensor("SHAPE", "INT64", ["items", "s"]),
        ],
        [constant("one", [1]), constant("row", [1, -1])],
    )


def describing(kind: str, datatype: str) -> str:
    outputs = tensors("output", "SEEN FP32 -1", "DESCRIBED FP32 -1", "SHAPE INT64 -1")
    items = BATCH_INPUT.format("BATCH_ITEM_SHAPE", "ITEMS", "INT32", "INPUT0")
    of_kind = BATCH_INPUT.format(kind, "DESCRIPTION", datatype, "INPUT0")
    return f"max_batch_size: 4 {RAGGED} {outputs} {items} {of_kind} {FOUR} {ONE}"


def described_models() -> dict[str, tuple[str, str]]:
    return {f"{kind.lower()}_{datatype.lower()}": (kind, datatype) for kind in KINDS for datatype in ("INT32", "FP32")}


def other_models() -> dict[str, tuple[onnx.ModelProto, str]]:
    return {
        "planes": (
            ragged_item_shapes(),
            f"max_batch_size: 4 {RAGGED_PLANE} {tensors('output', 'DOUBLED FP32 -1,-1', 'SHAPES_OUT FP32 -1')} "
            + BATCH_INPUT.format("BATCH_ITEM_SHAPE", "SHAPES", "FP32", "INPUT0")
            + SCATTER.format("DOUBLED", "INPUT0")
            + FOUR,
        ),
        "embeddings": (
            packed_embeddings(),
            "max_batch_size: 4 "
            + tensors("input", "TOKENS INT64 -1 allow_ragged_batch: true")
            + tensors("output", "EMBEDDED FP32 -1,2")
            + SCATTER.format("EMBEDDED", "TOKENS")
            + FOUR,
        ),
        "rows": (
            identity("FP32", ["batch", "n"]),
            f"max_batch_size: 4 {tensors('input', 'INPUT0 FP32 -1')} {tensors('output', 'OUTPUT0 FP32 -1')} {FOUR}",
        ),
    }


def refused_models() -> dict[str, tuple[onnx.ModelProto, str]]:
    outputs = tensors("output", "DOUBLED FP32 -1", "SHAPES_OUT FP32 -1")
    graph = ragged_item_shapes()
    shapes = BATCH_INPUT.format("BATCH_ITEM_SHAPE", "SHAPES", "FP32", "INPUT0")
    texts = {
        "no kind": 'batch_input { target_name: "SHAPES" data_type: TYPE_FP32 source_input: "INPUT0" } ',
        "no target": "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_FP32 source_input: 'INPUT0' } ",
        "two targets": BATCH_INPUT.format("BATCH_ITEM_SHAPE", 'SHAPES" target_name: "OTHER', "FP32", "INPUT0"),
        "no source": 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_FP32 } ',
        "two sources": BATCH_INPUT.format("BATCH_ITEM_SHAPE", "SHAPES", "FP32", 'INPUT0" source_input: "INPUT0'),
        "unknown source": BATCH_INPUT.format("BATCH_ITEM_SHAPE", "SHAPES", "FP32", "NO"),
        "unknown target": shapes + BATCH_INPUT.format("BATCH_ELEMENT_COUNT", "NO", "FP32", "INPUT0"),
        "int64": BATCH_INPUT.format("BATCH_ITEM_SHAPE", "SHAPES", "INT64", "INPUT0"),
        "other datatype": BATCH_INPUT.format("BATCH_ITEM_SHAPE", "SHAPES", "INT32", "INPUT0"),
        "target is an input": BATCH_INPUT.format("BATCH_ELEMENT_COUNT", "INPUT0", "FP32", "INPUT0") + shapes,
        "output without source": shapes
        + "batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: 'DOUBLED' } ",
        "output with two sources": shapes + SCATTER.format("DOUBLED", "INPUT0' source_input: 'INPUT0"),
        "output of unknown source": shapes + SCATTER.format("DOUBLED", "NO"),
        "unknown output": shapes + SCATTER.format("NO", "INPUT0"),
        "output twice": shapes + 2 * SCATTER.format("DOUBLED", "INPUT0"),
    }
    doubled = SCATTER.format("DOUBLED", "INPUT0")
    found = {
        name: (graph, f"max_batch_size: 4 {RAGGED} {outputs} {text} {'' if 'batch_output' in text else doubled}")
        for name, text in texts.items()
    }
    found["without batches"] = (graph, f"max_batch_size: 0 {RAGGED} {outputs} {shapes}")
    found |= {
        "output of the whole batch": (
            identity("FP32", ["n"]),
            f"max_batch_size: 4 {RAGGED} {tensors('output', 'OUTPUT0 FP32 -1')} {FOUR}",
        ),
        "ragged rows": (
            identity("FP32", ["batch", "n"]),
            f"max_batch_size: 4 {RAGGED} {tensors('output', 'OUTPUT0 FP32 -1')} {FOUR}",
        ),
    }
    shape_tensor = tensors("input", "INPUT0 INT32 1 is_shape_tensor: true") + tensors("output", "OUTPUT0 INT32 1")
    found["shape tensor"] = (identity("INT32", ["batch", 1]), f"max_batch_size: 4 {shape_tensor}")
    return found


def refused_name(name: str) -> str:
    return "refused_" + name.replace(" ", "_")


MODELS = [*described_models(), *other_models()]
OPTIONS = ("--model-control-mode=explicit", *[f"--load-model={name}" for name in MODELS])
AT_LOAD = "what a batch needs of the graph is checked at load"
OTHERWISE: dict[str, tuple[str, Any]] = {
    "refused: no kind": (
        AT_LOAD,
        "unable to load model 'refused_no_kind', batch input 'SHAPES' of kind 'BATCH_ELEMENT_COUNT' has 1 dimension, "
        "model provides [-1,-1]",
    ),
    "refused: no target": (
        AT_LOAD,
        "batch input kind 'BATCH_ITEM_SHAPE' expects a target name, got none for refused_no_target",
    ),
    "refused: two targets": (
        AT_LOAD,
        "unable to load model 'refused_two_targets', configuration expects 3 inputs, model provides 2",
    ),
    "refused: other datatype": (
        AT_LOAD,
        "unable to load model 'refused_other_datatype', configuration expects datatype TYPE_INT32 for batch input "
        "'SHAPES', model provides TYPE_FP32",
    ),
    "refused: output twice": (
        "one would have no effect",
        "target output name 'DOUBLED' can only be specified once for refused_output_twice",
    ),
}


def write_models(folder: Path) -> None:
    for name, (kind, datatype) in described_models().items():
        graph = described(datatype, 2 if kind == "BATCH_ITEM_SHAPE" else 1)
        write_version(graph, folder, name, describing(kind, datatype))
    for name, (graph, config) in other_models().items():
        write_version(graph, folder, name, f"{config} {ONE}")
    for name, (graph, config) in refused_models().items():
        write_version(graph, folder, refused_name(name), f"{config} {ONE}")


def ask_refused(server: ServerProcess) -> Answers:
    return {name: refusal(server, refused_name(name)) for name in refused_models()}


def numbers(*shape: int, first: int = 1, name: str = "INPUT0", datatype: str = "FP32") -> Any:
    count = 1
    for each in shape:
        count *= each
    return document([(name, datatype, list(shape), list(range(first, first + count)))])


def together(server: ServerProcess, model: str, requests: list[Any]) -> Any:
    with Sender(server, model) as sender:
        for each in requests:
            sender.send(each)
    return sender.answers


def ask_described(server: ServerProcess) -> Answers:
    found: Answers = {}
    for model in described_models():
        for name, shapes in (("four", [(1, 2), (1, 4), (1, 1), (1, 3)]), ("three", [(1, 3), (2, 2), (1, 1)])):
            answers = together(server, model, [numbers(*shape, first=10 * n) for n, shape in enumerate(shapes)])
            for answer in answers:
                answer.pop("SEEN", None)
                if model.startswith("batch_max"):
                    answer.pop("DESCRIBED", None)
            found[f"{model} {name}"] = answers
    return found


def ask_others(server: ServerProcess) -> Answers:
    """Batches of requests with different shapes, cut in several ways."""
    found: Answers = {}
    for model, shapes in (
        ("planes", [(1, 2, 2), (1, 1, 3), (2, 1, 1)]),
        ("planes", [(4, 2, 1)]),
        ("rows", [(1, 2), (1, 2), (2, 2)]),
        ("rows", [(1, 2), (3, 3), (1, 3), (2, 2), (2, 2)]),
        ("rows", [(5, 2)]),
    ):
        found[f"{model} {shapes}"] = together(server, model, [numbers(*each) for each in shapes])
    tokens = [numbers(*each, name="TOKENS", datatype="INT64") for each in ((1, 2), (1, 3), (2, 2))]
    found["embeddings"] = together(server, "embeddings", tokens)
    found["wrong rank"] = infer(server, "planes", numbers(4, 2))
    found["one alone is too large"] = infer(server, "embeddings", numbers(5, 1, name="TOKENS", datatype="INT64"))
    found["counts"] = {model: counts(server, model) for model in ("planes", "rows", "embeddings")}
    return found
