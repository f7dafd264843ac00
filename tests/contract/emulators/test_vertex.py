"""`trident emulate vertex`, called by the real SDK."""

from __future__ import annotations

import json
import signal
import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
from google.api.httpbody_pb2 import HttpBody
from google.api_core.exceptions import BadRequest, MethodNotImplemented, NotFound
from google.cloud.aiplatform_v1 import PredictionServiceClient, StreamDirectRawPredictRequest
from google.cloud.aiplatform_v1.services.prediction_service.transports.grpc import PredictionServiceGrpcTransport
from google.protobuf.json_format import ParseDict
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

from tests.contract.emulators.emulator_process import LIMIT_S
from tests.contract.emulators.printed_requests import model_of, run_vertex_request
from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.contract.repository.cloud_models import fetched
from tests.contract.repository.fake_storage import FaultProxy
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.servers.ports import free_ports
from tests.contract.servers.simple_model import WIDTH, good_document, link_models
from tests.project import ROOT
from tests.waiting import until

SIMPLE = ROOT / "deploy" / "models" / "simple"
BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
KEPT = "the container kept all limits of the platform"
FIRST = list(range(WIDTH))
INSTANCE = {"INPUT0": FIRST, "INPUT1": [3] * WIDTH}
PREDICTION = {"OUTPUT0": [n + 3 for n in FIRST], "OUTPUT1": [n - 3 for n in FIRST]}

pytestmark = pytest.mark.slow


def held(content: bytes, content_type: str = "application/json") -> HttpBody:
    return HttpBody(data=content, content_type=content_type)


def binary_request(numbers: list[float]) -> tuple[bytes, str]:
    """A request for identity_fp32 in Triton's binary form, and its content type."""
    packed = struct.pack(f"<{len(numbers)}f", *numbers)
    parameters = {"binary_data_size": len(packed)}
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(numbers)], "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + packed, f"{BINARY}{len(head)}"


def check_direct_calls(emulator: VertexEmulator) -> None:
    """Messages of the container's gRPC service, in the REST API's call and over gRPC, alone and in a stream."""
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [1, WIDTH], "contents": {"int_contents": values}}
        for name, values in INSTANCE.items()
    ]
    message = ParseDict({"model_name": "simple", "inputs": inputs}, ModelInferRequest()).SerializeToString()
    unknown = ModelInferRequest(model_name="none")
    service = "/inference.GRPCInferenceService"
    request = {"endpoint": emulator.endpoint, "method_name": f"{service}/ModelInfer", "input": message}

    def sums(answer: ModelInferResponse) -> list[int]:
        return np.frombuffer(answer.raw_output_contents[0], np.int32).tolist()

    with grpc.insecure_channel(emulator.grpc_address) as channel, emulator.client() as rest:
        client = PredictionServiceClient(transport=PredictionServiceGrpcTransport(channel=channel))
        for each in (rest, client):
            answer = each.direct_raw_predict(request=request)
            assert sums(ModelInferResponse.FromString(answer.output)) == PREDICTION["OUTPUT0"]
            with pytest.raises(MethodNotImplemented, match="call directRawPredict"):
                each.direct_predict(request={"endpoint": emulator.endpoint})
            with pytest.raises(NotFound, match="unknown model: 'none'"):
                each.direct_raw_predict(request={**request, "input": unknown.SerializeToString()})
            with pytest.raises(BadRequest, match="method_name"):
                each.direct_raw_predict(request={**request, "method_name": "ModelInfer"})
        first = StreamDirectRawPredictRequest(endpoint=emulator.endpoint, method_name=f"{service}/ModelStreamInfer")
        more = [StreamDirectRawPredictRequest(input=message) for _ in range(3)]
        streamed = client.stream_direct_raw_predict(iter([first, *more]))
        answers = [ModelStreamInferResponse.FromString(each.output).infer_response for each in streamed]
        assert [sums(each) for each in answers] == [PREDICTION["OUTPUT0"]] * 3


def test_generated_client_is_answered(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    grpc_options = (f"--grpc-port={port}", "--", "--allow-grpc=true", f"--grpc-port={port}")
    with VertexEmulator(tmp_path, SIMPLE, *grpc_options) as emulator:
        endpoint = emulator.endpoint
        check_direct_calls(emulator)
        with emulator.client() as client:
            answer = client.predict(endpoint=endpoint, instances=[INSTANCE, INSTANCE])
            assert [dict(each) for each in answer.predictions] == [PREDICTION] * 2
            assert (answer.model_display_name, answer.model_version_id) == ("simple", "1")
            assert answer.deployed_model_id.isdigit()
            assert answer.model.startswith(endpoint.partition("/endpoints/")[0])

            with pytest.raises(BadRequest, match=r"instance 1: input 'INPUT1' is missing"):
                client.predict(endpoint=endpoint, instances=[INSTANCE, {"INPUT0": FIRST}])

            explained = client.explain(endpoint=endpoint, instances=[INSTANCE])
            assert [dict(each) for each in explained.predictions] == [PREDICTION]
            assert len(explained.explanations) == 1

            request = {"endpoint": endpoint, "http_body": held(json.dumps(good_document()).encode())}
            raw = client.raw_predict(request=request)
            assert raw.content_type == "application/json"
            assert json.loads(raw.data)["outputs"][0]["data"] == PREDICTION["OUTPUT0"]
            streamed = list(client.stream_raw_predict(request=request))
            assert json.loads(b"".join(part.data for part in streamed)) == json.loads(raw.data)

            redirected = client.raw_predict(
                request={"endpoint": endpoint, "http_body": held(b"")},
                metadata=[("x-vertex-ai-triton-redirect", "v2/models/simple/config")],
            )
            assert json.loads(redirected.data)["name"] == "simple"
            with pytest.raises(BadRequest, match="neither"):
                client.raw_predict(request={"endpoint": endpoint, "http_body": held(b"{}")})
        assert emulator.end() == 0, emulator.text()
        until(lambda: KEPT in emulator.text())
        until(lambda: "explain: the platform computes attributions itself" in emulator.text())


def test_sdks_endpoint_class_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with VertexEmulator(tmp_path, SIMPLE) as emulator:
        endpoint = emulator.sdk_endpoint()
        assert [model.display_name for model in endpoint.list_models()] == ["simple"]
        for more in ({}, {"use_raw_predict": True}):
            answer = endpoint.predict(instances=[INSTANCE], **more)
            assert answer.predictions == [PREDICTION]
            assert answer.deployed_model_id == endpoint.list_models()[0].id
        body = json.dumps(good_document()).encode()
        raw = endpoint.raw_predict(body=body, headers={"Content-Type": "application/json"})
        assert raw.json()["outputs"][1]["data"] == PREDICTION["OUTPUT1"]
        assert raw.headers["X-Vertex-AI-Endpoint-Id"] == endpoint.name
        streamed = b"\n".join(endpoint.stream_raw_predict(body=body, headers={"Content-Type": "application/json"}))
        assert json.loads(streamed) == raw.json()
        assert endpoint.explain(instances=[INSTANCE]).predictions == [PREDICTION]
        inputs = {"INPUT0": ("INT32", WIDTH), "INPUT1": ("INT32", WIDTH)}
        run_vertex_request(emulator, model_of(inputs, max_batch_size=8), monkeypatch)
        assert json.loads(capsys.readouterr().out)["outputs"][0]["data"] == [2] * WIDTH
        assert emulator.end(signal.SIGINT) == 0, emulator.text()


def test_invoke_route_prefix_allows_every_path_but_predict(tmp_path: Path) -> None:
    with VertexEmulator(tmp_path, SIMPLE, "--invoke-route-prefix=/*") as emulator:
        endpoint = emulator.sdk_endpoint()
        body = json.dumps(good_document()).encode()
        for deployed in (None, endpoint.list_models()[0].id):
            answer = endpoint.invoke(
                request_path="/v2/models/simple/infer", body=body, headers={}, deployed_model_id=deployed
            )
            assert answer.json()["outputs"][0]["data"] == PREDICTION["OUTPUT0"]
        assert requests.get(f"{emulator.address}/invoke/v2/health/ready", timeout=LIMIT_S).status_code == 200
        with emulator.client() as client, pytest.raises(BadRequest, match="invoke route prefix"):
            client.predict(endpoint=emulator.endpoint, instances=[INSTANCE])
        assert emulator.end() == 0, emulator.text()


def test_shared_endpoint_has_its_limits_and_the_models_routes_and_arguments(tmp_path: Path) -> None:
    models = link_models(tmp_path / "models", "identity_fp32", "simple")
    arguments = [
        "--endpoint-type=shared",
        "--predict-route=/v2/models/identity_fp32/infer",
        "--health-route=/v2/health/ready",
        "--env=WHICH=identity_fp32",
        "--",
        "--strict-readiness=true",
        "--vertex-ai-default-model=$(WHICH)",
    ]
    with VertexEmulator(tmp_path, models, *arguments) as emulator:
        endpoint = emulator.sdk_endpoint()
        assert endpoint.predict(instances=[[1.5], [2.5]]).predictions == [[1.5], [2.5]]

        body, content_type = binary_request([0.1] * 100)
        url, headers = f"{emulator.address}:rawPredict", {"Content-Type": content_type}
        assert requests.post(url, body, headers=headers, timeout=LIMIT_S).json()["outputs"][0]["shape"] == [1, 100]

        large, _ = binary_request([0.1] * 400_000)  # the request
        refused = requests.post(url, large, headers=headers, timeout=LIMIT_S)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == f"The request size ({len(large)} bytes) exceeds 1.500MB limit."

        short = ",".join(["1e5"] * 300_000)  # the answer is longer
        refused = requests.post(f"{emulator.address}:predict", f'{{"instances": [[{short}]]}}', timeout=LIMIT_S)
        assert refused.status_code == 400
        assert "Response size too large" in refused.json()["error"]["message"]

        assert emulator.end() == 1
        report = emulator.text().partition("2 breaches of the platform's limits:")[2]
        assert f"the caller sent a request body of {len(large)} bytes, where the endpoint takes 1500000" in report
        assert "POST /v2/models/identity_fp32/infer: the container answered with more than 1.5 MB" in report


def test_artifacts_come_from_cloud_storage_once(tmp_path: Path) -> None:
    content = (SIMPLE / "1" / "model.onnx").read_bytes()
    with GcsEmulator() as storage, FaultProxy(storage.endpoint) as proxy:
        storage.put("artifacts", "models/some/model.onnx", content)
        for _ in range(2):
            options = {"STORAGE_EMULATOR_HOST": proxy.endpoint}
            with VertexEmulator(tmp_path, "gs://artifacts/models/some", **options) as emulator:
                with emulator.client() as client:
                    instance = {name: [1.0] * WIDTH for name in ("INPUT0", "INPUT1")}
                    answer = client.predict(endpoint=emulator.endpoint, instances=[instance])
                    assert dict(answer.predictions[0])["OUTPUT0"] == [2] * WIDTH
                assert emulator.end() == 0, emulator.text()
        assert fetched(proxy.requests) == {"some/model.onnx": 1}


def test_container_that_cannot_start_fails_the_deployment(tmp_path: Path) -> None:
    with VertexEmulator(tmp_path, SIMPLE, "--", "--no-such-option", ready=False) as emulator:
        assert emulator.wait() == 1
        until(lambda: "breach: the container ended by itself, with status 1" in emulator.text())


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_batch_job_labels_predictions_with_the_key_field(tmp_path: Path) -> None:
    rows = [{"id": f"row {n}", "INPUT0": [n] * WIDTH, "INPUT1": [1] * WIDTH} for n in range(10)]
    rows[4]["INPUT0"] = [1]
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    arguments = [f"--batch={source}", f"--output={output}", "--key-field=id", "--batch-size=2"]
    with VertexEmulator(tmp_path, SIMPLE, *arguments, ready=False) as emulator:
        assert emulator.wait() == 1
        until(lambda: "8 instances predicted, 2 failed" in emulator.text())
        until(lambda: KEPT in emulator.text())
    found = lines(output / "predictions_0001.jsonl")
    assert [line["key"] for line in found] == [f"row {n}" for n in (0, 1, 2, 3, 6, 7, 8, 9)]
    assert found[2]["prediction"] == {"OUTPUT0": [3] * WIDTH, "OUTPUT1": [1] * WIDTH}
    errors = lines(output / "errors_0001.jsonl")
    assert [line["key"] for line in errors] == ["row 4", "row 5"]
    assert "instance 0" in errors[0]["error"]["message"]
