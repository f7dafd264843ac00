"""Models with sequences: their graphs, and their configurations."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from tests.contract.python.python_models import write_model
from tests.unit.onnx_models import Dims, build, tensor, write_version
from trident.core.inference.tensors import BY_NAME

FLAGS = {
    "INT32": "int32_false_true: [ 0, 1 ]",
    "FP32": "fp32_false_true: [ -1, 2.5 ]",
    "BOOL": "bool_false_true: [ false, true ]",
}
CONTROLS = ("START", "END", "READY", "ID")

ECHO = """
def execute(self, requests):
    responses = []
    for request in requests:
        tensors = []
        for name in ("INPUT", "START", "END", "READY", "ID"):
            array = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            tensors.append(pb_utils.Tensor("OUT_" + name, array))
        tensors.append(pb_utils.Tensor("BATCH", np.full((1, 1), len(requests), np.int32)))
        responses.append(pb_utils.InferenceResponse(tensors))
    return responses
"""


def echo(flag: str, id: str, batch: str | None = "batch") -> onnx.ModelProto:
    """INPUT INT32 and the controls -> OUT_INPUT, OUT_START, OUT_END, OUT_READY, OUT_ID, all [batch,1] or [1]."""
    shape: Dims = [1] if batch is None else [batch, 1]
    datatypes = {"INPUT": "INT32", "START": flag, "END": flag, "READY": flag, "ID": id}
    return build(
        [helper.make_node("Identity", [name], [f"OUT_{name}"]) for name in datatypes],
        [tensor(name, datatype, shape) for name, datatype in datatypes.items()],
        [tensor(f"OUT_{name}", datatype, shape) for name, datatype in datatypes.items()],
    )


def history() -> onnx.ModelProto:
    """INPUT INT32 [batch,1], SO_FAR INT32 [batch,n] -> ALL INT32 [batch,n+1]: INPUT after SO_FAR."""
    return build(
        [helper.make_node("Concat", ["SO_FAR", "INPUT"], ["ALL"], axis=1)],
        [tensor("INPUT", "INT32", ["batch", 1]), tensor("SO_FAR", "INT32", ["batch", "n"])],
        [tensor("ALL", "INT32", ["batch", "m"])],
    )


def previous() -> onnx.ModelProto:
    """INPUT BYTES [batch,1], BEFORE BYTES [batch,1] -> PREVIOUS, which is BEFORE, and LAST, which is INPUT."""
    names = {"BEFORE": "PREVIOUS", "INPUT": "LAST"}
    return build(
        [helper.make_node("Identity", [name], [output]) for name, output in names.items()],
        [tensor(name, "BYTES", ["batch", 1]) for name in names],
        [tensor(name, "BYTES", ["batch", 1]) for name in names.values()],
    )


def controls(flag: str, id: str) -> str:
    kinds = [f"kind: CONTROL_SEQUENCE_{name} {FLAGS[flag]}" for name in CONTROLS[:3]]
    kinds.append(f"kind: CONTROL_SEQUENCE_CORRID data_type: {BY_NAME[id].config_name}")
    return " ".join(
        f'control_input {{ name: "{name}" control {{ {kind} }} }}' for name, kind in zip(CONTROLS, kinds, strict=True)
    )


def sequences(strategy: str, more: str = "", *, idle_us: int = 60_000_000, batch: int = 4) -> str:
    return (
        f"max_batch_size: {batch} instance_group {{ count: 1 kind: KIND_CPU }} "
        f"sequence_batching {{ max_sequence_idle_microseconds: {idle_us} {strategy} {more} }}"
    )


ONE = "oldest { max_candidate_sequences: 1 }"


def write_models(repository: Path) -> Path:
    """`quick` has one slot, and is idle after 0.5 s. `python` echoes its controls, and the size of its batch."""
    config = sequences(ONE, controls("INT32", "UINT64"), idle_us=500_000)
    write_version(echo("INT32", "UINT64"), repository, "quick", config)
    tensors = 'input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ' + " ".join(
        f'output {{ name: "{name}" data_type: {datatype} dims: [ 1 ] }}'
        for name, datatype in (
            ("OUT_INPUT", "TYPE_INT32"),
            ("OUT_START", "TYPE_INT32"),
            ("OUT_END", "TYPE_INT32"),
            ("OUT_READY", "TYPE_INT32"),
            ("OUT_ID", "TYPE_UINT64"),
            ("BATCH", "TYPE_INT32"),
        )
    )
    scheduling = sequences("direct {}", controls("INT32", "UINT64")).removeprefix("max_batch_size: 4 ")
    write_model(repository, "python", ECHO, f"{tensors} {scheduling}", max_batch_size=4)
    return repository
