"""Prints how fast bodies of 1,000 rows with 30 features become tensors, beside the usual ways to do it in Python.

python -m bench.payloads
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson

from core.config.model_spec import InputSpec, ModelSpec, OutputSpec
from core.http.json_document import parse_document
from core.http.json_tensors import array_from_json
from core.http.payloads.csv_decoder import decode_csv
from core.http.payloads.csv_encoder import encode_csv
from core.http.payloads.json_decoder import decode_json
from core.http.payloads.json_encoder import encode_predictions
from core.http.payloads.jsonlines import decode_jsonlines
from core.http.payloads.output_columns import OutputColumn
from core.http.payloads.payload import DecodeRules
from core.tensors import BY_NAME

ROWS, FEATURES = 1000, 30
FP32 = BY_NAME["FP32"]
RULES = DecodeRules()


def spec(*inputs: InputSpec) -> ModelSpec:
    return ModelSpec(
        name="tabular",
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=ROWS,
        inputs={i.name: i for i in inputs},
        outputs={"OUT": OutputSpec(name="OUT", datatype=FP32, dims=(FEATURES,))},
    )


ONE = spec(InputSpec(name="IN", datatype=FP32, dims=(FEATURES,)))
MANY = spec(*(InputSpec(name=f"f{i}", datatype=FP32, dims=(1,)) for i in range(FEATURES)))


def best_ms(runs: list[Callable[[], Any]], rounds: int = 40) -> list[float]:
    """The shortest time of each, in milliseconds; taken in turn, so that a busy machine is busy for all of them."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for index, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[index] = min(best[index], time.perf_counter() - start)
    return [seconds * 1e3 for seconds in best]


def loop_json(body: bytes) -> Any:
    rows = json.loads(body)["instances"]
    return np.array([[float(value) for value in row] for row in rows], np.float32)


def loop_objects(body: bytes) -> Any:
    rows = json.loads(body)["instances"]
    return {f"f{i}": np.array([[float(row[f"f{i}"])] for row in rows], np.float32) for i in range(FEATURES)}


def v2_json(body: bytes) -> Any:
    document = parse_document(body, binary_follows=False)
    return array_from_json(document["inputs"][0]["data"], FP32, ROWS * FEATURES, "IN")


def loop_response(array: Any) -> bytes:
    return json.dumps({"predictions": [[float(value) for value in row] for row in array]}).encode()


def loop_csv(array: Any) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(array.tolist())
    return file.getvalue()


def numpy_csv(text: bytes) -> Any:
    return np.loadtxt(io.BytesIO(text), np.float32, delimiter=",")


def report(what: str, ours: Callable[[], Any], others: Mapping[str, Callable[[], Any]]) -> None:
    mine, *rest = best_ms([ours, *others.values()])
    compared = (f"{name} {took:.2f} ms ({took / mine:.1f}x)" for name, took in zip(others, rest, strict=True))
    print(f"{what}: {mine:.2f} ms; {'; '.join(compared)}")


def main() -> None:
    array = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    doubles = array.astype(np.float64)
    rows = orjson.dumps({"instances": doubles}, option=orjson.OPT_SERIALIZE_NUMPY)
    v2 = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": array.shape, "data": doubles}]}
    v2_body = orjson.dumps(v2, option=orjson.OPT_SERIALIZE_NUMPY)
    objects = orjson.dumps({"instances": [{f"f{i}": v for i, v in enumerate(row)} for row in doubles.tolist()]})
    lines = b"\n".join(orjson.dumps(row) for row in doubles.tolist())
    report(
        "JSON arrays",
        lambda: decode_json(rows, ONE, RULES),
        {"Python loop": lambda: loop_json(rows), "v2 JSON tensor": lambda: v2_json(v2_body)},
    )
    report("JSON objects", lambda: decode_json(objects, MANY, RULES), {"Python loop": lambda: loop_objects(objects)})
    report("JSON lines", lambda: decode_jsonlines(lines, ONE, RULES), {"Python loop": lambda: loop_json(rows)})
    for name, values in (("short", array), ("17 digits", doubles)):
        text = "\n".join(",".join(map(str, row)) for row in values).encode() + b"\n"
        with_nan = b"NaN" + text[text.index(b",") :]
        loadtxt = {"numpy.loadtxt": partial(numpy_csv, text)}
        report(f"CSV, {name}", partial(decode_csv, text, ONE, RULES), loadtxt)
        report(f"CSV with a NaN, {name}", partial(decode_csv, with_nan, ONE, RULES), loadtxt)
    columns = [OutputColumn("OUT", FP32, [array])]
    report("JSON predictions", lambda: encode_predictions(columns), {"Python loop": lambda: loop_response(array)})
    report(
        "JSON arrays in and predictions out",
        lambda: (decode_json(rows, ONE, RULES), encode_predictions(columns)),
        {"Python loop": lambda: loop_response(loop_json(rows))},
    )
    report("CSV predictions", lambda: encode_csv(columns), {"csv.writer": lambda: loop_csv(array)})


if __name__ == "__main__":
    main()
