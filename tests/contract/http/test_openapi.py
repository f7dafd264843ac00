"""The OpenAPI documents of a server and its requests to copy: examples work, and the server answers as they say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.contract.servers.server import HOST, ServerProcess, environment_without
from tests.contract.servers.session import TRIDENT
from tests.needed import program
from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.onnx_serving import identity_config

pytestmark = pytest.mark.slow

SERVER = "/v2/docs/openapi.json"
MODELS = ("simple", "digits", "running_mean", "stream_words", "half")
CHECKS = (status_code_conformance, content_type_conformance, response_schema_conformance)


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    for path in ("models/simple", "models/digits", "examples/running_mean", "examples/stream_words"):
        (models / Path(path).name).symlink_to(ROOT / "deploy" / path)
    onnx_models.write_version(onnx_models.identity("FP16"), models, "half", identity_config("FP16", (-1,)))
    wide = onnx_models.identity("FP32", ("batch", 5000))
    onnx_models.write_version(wide, models, "wide", identity_config("FP32", (5000,)))
    log = tmp_path_factory.mktemp("server") / "log"
    with ServerProcess(models, log, "--shutdown-grace-secs=0", "--console=true") as running:
        yield running


def paths(server: ServerProcess, path: str) -> Any:
    return server.json("GET", path)["paths"]


@pytest.mark.parametrize("model", MODELS)
def test_openapi_of_a_model_is_valid_and_its_example_works(model: str, server: ServerProcess) -> None:
    document = server.json("GET", f"/v2/models/{model}/openapi.json")
    validate(document)
    examples = {
        path: operation["requestBody"]["content"]["application/json"]["example"]
        for path, item in document["paths"].items()
        for operation in [item.get("post", {})]
        if "example" in operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    }
    tails = {path.rpartition("/")[2] for path in examples}
    # FP16 has no JSON.
    infers = set() if model == "half" else {"generate_stream"} if model == "stream_words" else {"infer"}
    assert infers <= tails
    for path, example in examples.items():
        if model == "running_mean" and not path.endswith("/infer"):
            continue  # a sequence has no form there
        conforms(document, "GenerateRequest" if "generate" in path else "InferRequest", example)
        status, _, body = server.request("POST", path, json.dumps(example).encode())
        assert status == 200, body
        if path.endswith("/infer"):
            conforms(document, "InferResponse", json.loads(body))


def conforms(document: Any, schema: str, value: Any) -> None:
    components = {"components": document["components"], "$ref": f"#/components/schemas/{schema}"}
    Draft202012Validator(components).validate(value)


def test_openapi_of_a_model_describes_its_inputs(server: ServerProcess) -> None:
    document = server.json("GET", "/v2/models/digits/versions/1/openapi.json")
    example = document["paths"]["/v2/models/digits/versions/1/infer"]["post"]["requestBody"]["content"][
        "application/json"
    ]["example"]
    validator = Draft202012Validator(
        {"components": document["components"], "$ref": "#/components/schemas/InferRequest"}
    )
    (tensor,) = example["inputs"]
    for wrong in ({"name": "OTHER"}, {"datatype": "INT8"}, {"shape": [1, 1, 8, 9]}, {"shape": [0, 1, 8, 8]}):
        assert not validator.is_valid({"inputs": [tensor | wrong]})
    top = {"name": "OUTPUT", "parameters": {"classification": 3}}
    assert validator.is_valid({**example, "outputs": [top]})
    assert not validator.is_valid({**example, "outputs": [{**top, "parameters": {"classification": 11}}]})
    answer = server.json("POST", "/v2/models/digits/infer", {**example, "outputs": [top]})
    conforms(document, "InferResponse", answer)


@pytest.mark.parametrize(
    ("document", "mode", "examples"),
    [
        (SERVER, GenerationMode.POSITIVE, 2),
        ("/v2/models/simple/openapi.json", GenerationMode.POSITIVE, 10),
        ("/v2/models/simple/openapi.json", GenerationMode.NEGATIVE, 10),
    ],
)
def test_server_answers_as_its_openapi_document_says(
    document: str, mode: GenerationMode, examples: int, server: ServerProcess
) -> None:
    validate(server.json("GET", document))
    schema = schemathesis.openapi.from_url(f"http://{HOST}:{server.http_port}{document}")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert {each.path for each in operations} == set(paths(server, document))
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue
        if "{model}" in operation.path:
            continue  # no made-up name is a model's; its own document names it

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: Any) -> None:
            response = case.call()
            # Other errors of a server say what it cannot do: 501 and 503.
            assert response.status_code != 500, response.text
            case.validate_response(response, checks=CHECKS)

        call()


@pytest.mark.parametrize(
    ("platform", "variables", "own"),
    [
        (
            "sagemaker",
            {},
            {
                *("/ping", "/invocations", "/invocations-bidirectional-stream"),
                *("/execution-parameters", "/metrics"),
                *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/{model}"),
            },
        ),
        (
            "sagemaker",
            {"SAGEMAKER_MULTI_MODEL": "true"},
            {"/ping", "/models", "/models/{model}", "/models/{model}/invoke", "/metrics"},
        ),
        ("vertex", {"AIP_PREDICT_ROUTE": "/here", "AIP_HEALTH_ROUTE": "/well"}, {"/here", "/well", "/metrics"}),
    ],
)
def test_platform_has_an_openapi_document(platform: str, variables: dict[str, str], own: set[str]) -> None:
    command = [TRIDENT, "openapi", platform]
    done = subprocess.run(command, env=environment_without("TRIDENT_") | variables, capture_output=True, check=True)
    document = json.loads(done.stdout)
    validate(document)
    assert own <= document["paths"].keys()
    # On Vertex AI clients may reach the routes of the v2 protocol as well.
    assert platform == "vertex" or own == document["paths"].keys()


# --- each form of a request to copy is run as it is printed, against the server that printed it


pytestmark = pytest.mark.slow

# What the answer to each form has somewhere.
ANSWERS = {"simple": "2", "running_mean": "1", "stream_words": "text", "half": "1", "wide": "1"}
REFUSED = {"stream_words": {"curl-binary", "http"}, "half": {"curl"}}


def text_of(server: ServerProcess, model: str, form: str) -> str:
    status, headers, body = server.request("GET", f"/v2/models/{model}/request?form={form}")
    assert (status, headers["Content-Type"]) == (200, "text/plain"), body
    return body.decode()


@pytest.mark.parametrize("model", ANSWERS)
@pytest.mark.parametrize("form", ["curl", "curl-binary", "http", "grpc"])
def test_a_printed_request_is_answered(
    form: str, model: str, server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = server.json("GET", f"/v2/models/{model}/request")
    refused = {each["name"] for each in shown["forms"] if "unavailable" in each}
    assert refused == REFUSED.get(model, set())
    if form in refused:
        assert server.request("GET", f"/v2/models/{model}/request?form={form}")[0] == 400
        return
    text = text_of(server, model, form)
    if form.startswith("curl"):
        program("curl", "apt install curl")
        line = text.replace("curl -s", "curl --fail-with-body -s", 1)
        done = subprocess.run(["sh", "-c", line], capture_output=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout
        answer = tmp_path / "answer.bin"
        printed = (answer.read_bytes() if answer.exists() else done.stdout).decode("latin-1")
    else:
        exec(compile(text, form, "exec"), {})
        printed = capsys.readouterr().out
    assert ("\x00<" if "answer.bin" in text else ANSWERS[model]) in printed


@pytest.mark.parametrize("model", ["simple", "wide", "half"])
def test_the_file_for_perf_analyzer_has_a_request(model: str, server: ServerProcess) -> None:
    """Each step has the inputs of one item, in a shape without the batch dimension."""
    (step,) = json.loads(text_of(server, model, "perf-analyzer"))["data"]
    inputs: list[dict[str, Any]] = server.json("GET", f"/v2/models/{model}/request")["inputs"]
    assert [each["name"] for each in inputs] == list(step)
    assert [[1, *step[each["name"]]["shape"]] for each in inputs] == [each["shape"] for each in inputs]
    if model == "simple":
        document = {"inputs": [{**each, "data": step[each["name"]]["content"]} for each in inputs]}
        assert server.json("POST", "/v2/models/simple/infer", document)["outputs"][0]["data"] == [2] * 16
    else:
        assert list(step["INPUT0"]["content"]) == ["b64"]


def test_sample_request_has_the_clients_address(server: ServerProcess) -> None:
    path = "/v2/models/simple/request"
    for query, host, expected in (
        ("", "models.example:80", "http://models.example:80/v2/models/simple/infer"),
        ("", "[::1]:8000", "'http://[::1]:8000/v2/models/simple/infer'"),
        ("&url=https://gate.example/triton/", "x", "https://gate.example/triton/v2/models/simple/infer"),
        ("", "x;touch y", f"http://localhost:{server.http_port}/v2/models/simple/infer"),
    ):
        status, _, body = server.request("GET", f"{path}?form=curl{query}", headers={"Host": host})
        assert (status, body.decode().split()[2]) == (200, expected)
    assert server.request("GET", f"{path}?form=curl&url=http://x'$(y)")[0] == 400
    assert server.request("GET", f"{path}?form=nothing")[0] == 400
    given = server.json("GET", f"{path}?shape=INPUT0:2,16&shape=INPUT1:2,16")
    assert [each["shape"] for each in given["inputs"]] == [[2, 16], [2, 16]]
