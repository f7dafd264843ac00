"""Without simdjson, for which there are Pythons without wheels, large requests have the same answers."""

from __future__ import annotations

import subprocess
import sys

from tests.project import ROOT

PROGRAM = """
import logging, orjson, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
sys.modules["simdjson"] = None
from trident.core.http.payloads.json import parse_number_array
from trident.core.http.v2_json import parse_document, read_slice
from trident.core.http.v2_json import array_from_json
from trident.core.inference.tensors import BY_NAME

text = b'{"id": "a", "inputs": [{"name": "x", "datatype": "FP32", "data": [[1.5, 2], [3, 4]]}]}' + b" " * 2000
document = parse_document(text, binary_follows=False, is_strict=True)
print(document["id"], array_from_json(document["inputs"][0]["data"], BY_NAME["FP32"], 4, "x").tolist())
print(read_slice(b"[1, 2]", "INT8", orjson.loads), parse_number_array(text, "inputs", "f"))
"""


def test_without_simdjson_large_documents_are_read_and_the_log_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300)
    note, *answers = done.stdout.splitlines()
    assert "pysimdjson is not installed" in note, done.stderr
    assert answers == ["a [1.5, 2.0, 3.0, 4.0]", "[1, 2] None"]
