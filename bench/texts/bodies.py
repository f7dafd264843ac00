"""The large texts, and the models that read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import orjson
from onnx import TensorProto, helper

MEGABYTE = 1 << 20
WIDTH = 30
_ROWS_AT_MOST = 1 << 23
_JSON = "application/json"
# Bytes of a number and of a string in the texts.
_NUMBER, _STRING = 10.4, 35
_CONFIG = """\
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: {datatype} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT" data_type: {datatype} dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
_TYPES = {"numbers": (TensorProto.FLOAT, "TYPE_FP32"), "strings": (TensorProto.STRING, "TYPE_STRING")}


@dataclass(frozen=True, slots=True)
class Text:
    """One case: `port` is the platform's, `make` makes the body of about `megabytes`, whose answer has `status`."""

    key: str
    title: str
    port: str
    path: str
    media_type: str
    model: str
    megabytes: int
    make: Callable[[int], bytes]
    status: int = 200


def build(repository: Path, model: str) -> Path:
    """Write one of the models, whose output is the first element of each row, into a repository of its own."""
    element_type, datatype = _TYPES[model]
    bounds = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in (("A", 0), ("B", 1), ("C", 1))
    ]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["INPUT", "A", "B", "C"], ["OUTPUT"])],
        "first",
        [helper.make_tensor_value_info("INPUT", element_type, ["N", "D"])],
        [helper.make_tensor_value_info("OUTPUT", element_type, ["N", 1])],
        bounds,
    )
    folder = repository / model / model
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(_CONFIG.format(batch=_ROWS_AT_MOST, datatype=datatype))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "1" / "model.onnx")
    return repository / model


def _numbers(megabytes: int) -> bytes:
    """Numbers with commas between them; a whole number of rows."""
    count = int(megabytes * MEGABYTE / _NUMBER) // WIDTH * WIDTH
    values = np.random.default_rng(1).standard_normal(count).round(7)
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _rows(megabytes: int) -> list[bytes]:
    values = _numbers(megabytes).split(b",")
    return [b",".join(values[start : start + WIDTH]) for start in range(0, len(values), WIDTH)]


def _strings(megabytes: int) -> list[str]:
    return [f"string number {number:07d} of a body" for number in range(megabytes * MEGABYTE // _STRING)]


def _v2_numbers(megabytes: int) -> bytes:
    text = _numbers(megabytes)
    shape = b"[1,%d]" % (text.count(b",") + 1)
    return b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":%b,"data":[%b]}]}' % (shape, text)


def _v2_broken(megabytes: int) -> bytes:
    """With an error near its end, where it is found last."""
    text = _v2_numbers(megabytes)
    return text[:-20] + b"x" + text[-20:]


def _v2_nan(megabytes: int) -> bytes:
    """With NaN in the place of every thousandth number, as Triton takes it."""
    start, _, rest = _v2_numbers(megabytes).rpartition(b"[")
    values = rest.split(b",")
    values[1:-1:1000] = [b"NaN"] * len(values[1:-1:1000])
    return start + b"[" + b",".join(values)


def _v2_strings(megabytes: int) -> bytes:
    strings = _strings(megabytes)
    tensor = {"name": "INPUT", "datatype": "BYTES", "shape": [len(strings), 1], "data": strings}
    return orjson.dumps({"inputs": [tensor]})


def _instances(megabytes: int) -> bytes:
    return b'{"instances":[[%b]]}' % b"],[".join(_rows(megabytes))


def _string_instances(megabytes: int) -> bytes:
    return orjson.dumps({"instances": [[text] for text in _strings(megabytes)]})


def _lines(megabytes: int) -> bytes:
    return b"\n".join([b"[%b]" % row for row in _rows(megabytes)])


def _csv(megabytes: int) -> bytes:
    return b"\n".join(_rows(megabytes))


_V2, _INVOKE, _PREDICT = "/v2/models/{}/infer", "/invocations", "/predict"
TEXTS = (
    Text("v2-numbers", "v2 JSON, numbers", "plain", _V2, _JSON, "numbers", 44, _v2_numbers),
    Text("v2-broken", "v2 JSON with an error", "plain", _V2, _JSON, "numbers", 16, _v2_broken, status=400),
    Text("v2-nan", "v2 JSON with NaN", "plain", _V2, _JSON, "numbers", 16, _v2_nan),
    Text("v2-strings", "v2 JSON, strings", "plain", _V2, _JSON, "strings", 44, _v2_strings),
    Text("json", "SageMaker, instances", "sagemaker", _INVOKE, _JSON, "numbers", 44, _instances),
    Text("lines", "SageMaker, JSON Lines", "sagemaker", _INVOKE, "application/jsonlines", "numbers", 44, _lines),
    Text("csv", "SageMaker, CSV", "sagemaker", _INVOKE, "text/csv", "numbers", 95, _csv),
    Text("vertex", "Vertex AI, strings", "vertex", _PREDICT, _JSON, "strings", 44, _string_instances),
)
