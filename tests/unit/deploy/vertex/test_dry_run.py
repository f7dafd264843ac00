"""The calls that the deployment commands print without making them."""

from __future__ import annotations

import json
import re

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
    assert re.search(r"binary\+json;json-header-size=\d+\n<\d+ bytes in all>", found.out)
    assert "X-Vertex-Ai-Triton-Redirect: metrics" in found.out
    assert len(found.out) < 10_000
