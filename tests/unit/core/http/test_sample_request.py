"""Sample requests: their content for each kind of model, and names that must stay text."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec, SequenceSpec
from trident.core.errors import InvalidRequest
from trident.core.http.sample_request import FORMS, TOKEN, Place, make_sample, write_request
from trident.core.inference.tensors import BY_NAME

PLACE = Place(url="http://localhost:8000", grpc_url="http://localhost:8001")
SEQUENCE = SequenceSpec(is_direct=True, slots=1, max_idle_ns=0, preferred_batch_sizes=(1,))
PYTHON = [form.name for form in FORMS.values() if form.language == "python"]


def model(*inputs: InputSpec, name: str = "m", batch: int = 0, output: str = "FP32", **more: Any) -> ModelSpec:
    out = OutputSpec(name="OUT", datatype=BY_NAME[output], dims=(1,))
    given = {each.name: each for each in inputs}
    return ModelSpec(
        name=name, version=1, platform="", backend="", max_batch_size=batch, inputs=given, outputs={"OUT": out}, **more
    )


def tensor(name: str, datatype: str, *dims: int, **more: Any) -> InputSpec:
    return InputSpec(name=name, datatype=BY_NAME[datatype], dims=dims, **more)


def curl_body(spec: ModelSpec) -> Any:
    return json.loads(shlex.split(write_request(make_sample(spec), "curl", PLACE))[-1])


def test_sample_request_has_valid_values_for_every_datatype() -> None:
    inputs = [tensor(name, name, -1, 2) for name in BY_NAME if name not in ("FP16", "BF16")]
    body = curl_body(model(*inputs, tensor("not asked for", "FP32", optional=True), batch=4))
    assert {each["name"]: each["data"] for each in body["inputs"]} == {
        each.name: ["text"] * 2 if each.name == "BYTES" else [True] * 2 if each.name == "BOOL" else [1, 1]
        for each in inputs
    }
    assert [each["shape"] for each in body["inputs"]] == [[1, 1, 2]] * len(inputs)


def test_a_sequence_begins_and_ends_with_the_request() -> None:
    body = curl_body(model(tensor("IN", "INT32", 1), sequence=SEQUENCE))
    assert body["parameters"] == {"sequence_id": 1, "sequence_start": True, "sequence_end": True}


def test_sample_picture_has_a_common_or_given_shape() -> None:
    spec = model(tensor("IN", "UINT8", 3, -1, -1), batch=1)
    assert make_sample(spec).inputs[0].shape == (1, 3, 224, 224)
    assert make_sample(spec, shapes={"IN": (2, 3, 5, 5)}).inputs[0].inner == (3, 5, 5)
    with pytest.raises(InvalidRequest, match="no input 'X'"):
        make_sample(spec, shapes={"X": (1,)})


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        (model(tensor("IN", "FP16", 1)), {"curl"}),
        (model(tensor("IN", "FP32", 1), output="BF16"), {"curl"}),
        (model(tensor("IN", "BYTES", 1), decoupled=True), {"curl-binary", "http"}),
        (model(tensor("IN", "FP16", 1), decoupled=True), {"curl", "curl-binary", "http", "sagemaker", "vertex"}),
        (model(tensor("IN", "FP32", 1 << 23)), {"curl", "curl-binary", "perf-analyzer"}),
    ],
)
def test_unusable_request_form_is_refused(spec: ModelSpec, refused: set[str]) -> None:
    found = set()
    for form in FORMS:
        try:
            write_request(make_sample(spec), form, PLACE)
        except InvalidRequest:
            found.add(form)
    assert found == refused


HOSTILE = "a'b\"c$(touch x)`touch y`\\ %s\n#é😀"


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("form", ["curl", "curl-binary"])
def test_hostile_name_is_quoted_for_the_shell(form: str, size: int, tmp_path: Path) -> None:
    spec = model(tensor(HOSTILE, "FP32", size), name=HOSTILE)
    command = write_request(make_sample(spec), form, Place(url="http://localhost:8000", headers=[TOKEN]))
    # Takes curl's place: keeps the words that the shell made of the line, and what was piped.
    script = f'curl() {{ printf "%s\\0" "$@" > words; cat > piped; }}\n{command}'
    variables = {"TOKEN": "t", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script], env=variables, capture_output=True, input=b"", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert {each.name for each in tmp_path.iterdir()} == {"words", "piped"}
    words, piped = (tmp_path / "words").read_text().split("\0")[:-1], (tmp_path / "piped").read_bytes()
    path = "a'b%22c$(touch%20x)%60touch%20y%60%5C%20%25s%0A%23%C3%A9%F0%9F%98%80/infer"
    assert f"http://localhost:8000/v2/models/{path}" in words
    assert "Authorization: Bearer t" in words
    document = piped[: piped.rindex(b"}") + 1] if piped else words[-1]
    assert json.loads(document)["inputs"][0]["name"] == HOSTILE


@pytest.mark.parametrize("form", PYTHON)
def test_hostile_name_is_quoted_for_python(form: str) -> None:
    spec = model(tensor(HOSTILE, "FP32", 1), name=HOSTILE)
    tree = ast.parse(write_request(make_sample(spec), form, PLACE))
    assert HOSTILE in [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
