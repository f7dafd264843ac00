"""The calls that the deployment commands print without making them."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from google.cloud.aiplatform_v1 import CreateBatchPredictionJobRequest, DeployModelRequest, UploadModelRequest

from tests.project import ROOT
from tests.unit.deploy.vertex.vertex_command import command
from tests.unit.deploy.vertex.vertex_platform import PLACE

DIGIT = ROOT / "deploy" / "digits" / "7.json"
UPLOAD = ("upload", "--model-id=digits", "--image=image", "--artifact-uri=gs://zoo/digits")
MACHINE = ("--machine-type=g2-standard-4", "--accelerator=NVIDIA_L4=1")
DEPLOY = ("deploy", "--model=digits", "--endpoint=digits", *MACHINE)
_SHOWN = re.compile(r"^(\w+\.\w+) (\{.*?\})$(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)


def shown(action: str, *arguments: str) -> list[tuple[str, dict[str, object]]]:
    """Each printed call: the RPC and the document of the message."""
    found = command(action, "--dry-run", *arguments)
    assert (found.status, found.errors) == (0, "")
    return [(name, json.loads(text)) for name, text in _SHOWN.findall(found.out)]


def shell(action: str, *arguments: str) -> list[str]:
    """The lines of the equivalent shell commands."""
    found = command(action, "--gcloud", *arguments)
    assert (found.status, found.errors) == (0, "")
    return [line for line in found.out.splitlines() if not line.startswith("#")]


def test_dry_run_prints_the_whole_message() -> None:
    ((name, document),) = shown(*UPLOAD, "--startup-probe=http:/health,failures=9", "--", "--strict-readiness=true")
    assert name == "ModelService.UploadModel"
    sent = UploadModelRequest.from_json(json.dumps(document))
    assert (sent.parent, sent.model_id, sent.model.artifact_uri) == (PLACE, "digits", "gs://zoo/digits")
    assert list(sent.model.container_spec.args) == ["--strict-readiness=true"]
    assert sent.model.container_spec.startup_probe.failure_threshold == 9


def test_dry_run_prints_calls_in_order() -> None:
    (created, _), (deployed, document) = shown(*DEPLOY, "--new=dedicated", "--ttl=1d")
    assert (created, deployed) == ("EndpointService.CreateEndpoint", "EndpointService.DeployModel")
    assert dict(DeployModelRequest.from_json(json.dumps(document)).traffic_split) == {"0": 100}
    arguments = ("--model=d", "--name=n", "--input=gs://b/i", "--output=gs://b/o", "--format=jsonl", *MACHINE)
    (_, document), (looked, _) = shown("batch", *arguments, "--wait")
    assert looked == "JobService.GetBatchPredictionJob"
    assert CreateBatchPredictionJobRequest.from_json(json.dumps(document)).batch_prediction_job.display_name == "n"


def test_dry_run_uses_a_stand_in_for_an_answer() -> None:
    names = [name for name, _ in shown("delete", "--expired", "--model=digits")]
    assert names == [
        "EndpointService.ListEndpoints",
        "EndpointService.GetEndpoint",
        "EndpointService.UndeployModel",
        "EndpointService.DeleteEndpoint",
        "ModelService.DeleteModel",
    ]


def test_dry_run_abbreviates_long_and_binary_bodies() -> None:
    found = command("smoke", "--dry-run", "--endpoint=e", f"--request={DIGIT}")
    assert found.status == 0, found.errors
    assert "<1600000 bytes in all>" in found.out
    assert re.search(r'"data": "<\d+ bytes>"', found.out)
    assert "# X-Vertex-Ai-Triton-Redirect: metrics" in found.out
    assert len(found.out) < 10_000


def test_gcloud_commands_match_the_calls() -> None:
    more = ("--predict-route=/predict", "--env=TRIDENT_LOG_VERBOSE=1", "--deployment-timeout=600")
    assert shell(*UPLOAD, *more, "--", "--http-restricted-api=metadata,health:key=a b") == [
        "gcloud ai models upload --display-name=digits --model-id=digits --artifact-uri=gs://zoo/digits "
        "--container-image-uri=image '--container-args=^;^--http-restricted-api=metadata,health:key=a b' "
        "--container-env-vars=TRIDENT_LOG_VERBOSE=1 --container-ports=8080 --container-predict-route=/predict "
        "--container-deployment-timeout-seconds=600 --project=my-project --region=us-central1"
    ]
    assert shell(*DEPLOY, "--new=shared", "--ttl=none", "--autoscale=accelerator=60", "--spot") == [
        "gcloud ai endpoints create --display-name=digits --endpoint-id=digits --project=my-project "
        "--region=us-central1",
        "gcloud ai endpoints deploy-model digits --model=digits --display-name=digits --machine-type=g2-standard-4 "
        "--accelerator=count=1,type=nvidia-l4 --min-replica-count=1 --max-replica-count=1 "
        "--autoscaling-metric-specs=gpu-duty-cycle=60 --spot --traffic-split=0=100 --project=my-project "
        "--region=us-central1",
    ]
    assert shell("shift", "--endpoint=digits", "--traffic=2=100", "--traffic=1=0", "--drain-secs=5")[1:] == [
        "gcloud ai endpoints update digits --traffic-split=1=0,2=100 --project=my-project --region=us-central1",
        "sleep 5",
        "gcloud ai endpoints undeploy-model digits --deployed-model-id=1 --project=my-project --region=us-central1",
    ]


@pytest.mark.parametrize(
    ("arguments", "url", "body"),
    [
        ((*UPLOAD, "--liveness-probe=tcp:8080"), "/models:upload", {"modelId": "digits"}),
        ((*DEPLOY, "--new=dedicated", "--ttl=none"), "/endpoints?endpointId=digits", {"displayName": "digits"}),
        ((*DEPLOY, "--autoscale=requests=60"), "/endpoints/digits:deployModel", {}),
        (
            ("batch", "--model=d", "--name=n", "--input=gs://b/i", "--output=gs://b/o", "--format=csv", *MACHINE),
            "/batchPredictionJobs",
            {"displayName": "n"},
        ),
    ],
)
def test_call_beyond_gcloud_becomes_a_curl_command(arguments: tuple[str, ...], url: str, body: dict[str, str]) -> None:
    words = shlex.split(shell(*arguments)[0])
    assert words[0] == "curl"
    assert "Authorization: Bearer $(gcloud auth print-access-token)" in words
    assert next(word for word in words if word.startswith("http")).endswith(f"/v1/{PLACE}{url}")
    sent = json.loads(words[words.index("--data-binary") + 1])
    assert {name: sent[name] for name in body} == body


def test_shell_inserts_the_token() -> None:
    line = shell(*DEPLOY, "--new=dedicated", "--ttl=none")[0]
    assert '-H "Authorization: Bearer $(gcloud auth print-access-token)"' in line
