"""Print how fast bodies of 1,000 rows with 30 features become tensors, beside the usual ways to do it in Python.

python -m bench.payloads
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.http.payloads.csv import decode_csv, encode_csv
from trident.core.http.payloads.json import decode_json, decode_jsonlines, encode_predictions
from trident.core.http.payloads.payload import DecodeRules, OutputColumn
from trident.core.http.v2_json import array_from_json, parse_document
from trident.core.inference.tensors import BY_NAME

ROWS, FEATURES = 1000, 30
ROUNDS = 40
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


def timed_ms(runs: Sequence[Callable[[], Any]], rounds: int = ROUNDS) -> list[list[float]]:
    """The times of each run, in milliseconds. The runs take turns, so other work on the machine slows all of them."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e3)
    return times


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


def features() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)


def csv_texts() -> dict[str, bytes]:
    """The rows as CSV: once with just enough digits for a float32, and once with the digits of a double."""
    texts: dict[str, bytes] = {}
    for digits, values in (("short", features()), ("17 digits", features().astype(np.float64))):
        text = "\n".join(",".join(map(str, row)) for row in values).encode() + b"\n"
        texts[f"CSV, {digits}"] = text
        texts[f"CSV with a NaN, {digits}"] = b"NaN" + text[text.index(b",") :]
    return texts


def csv_readers(text: bytes) -> dict[str, Callable[[], Any]]:
    """The readers, ours first; each returns the rows of the text as an array of float32."""
    return {
        "decode_csv": lambda: decode_csv(text, ONE, RULES).arrays["IN"],
        "numpy.loadtxt": lambda: np.loadtxt(io.BytesIO(text), np.float32, delimiter=","),
        "numpy.genfromtxt": lambda: np.genfromtxt(io.BytesIO(text), np.float32, delimiter=","),
    }


def report(what: str, ours: Callable[[], Any], others: Mapping[str, Callable[[], Any]]) -> None:
    mine, *rest = map(min, timed_ms([ours, *others.values()]))
    compared = (f"{name} {took:.2f} ms ({took / mine:.1f}x)" for name, took in zip(others, rest, strict=True))
    print(f"{what}: {mine:.2f} ms; {'; '.join(compared)}")


def main() -> None:
    array = features()
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
    for name, text in csv_texts().items():
        others = csv_readers(text)
        report(name, others.pop("decode_csv"), others)
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
