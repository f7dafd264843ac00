"""deploy/kubernetes: a server that is started as in its pods answers the probes and drains in time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.deploy.kubernetes_manifests import Manifests, manifests
from tests.contract.deploy.kubernetes_pod import KubernetesPod
from tests.contract.deploy.prometheus import Prometheus, finite
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

MODELS = ROOT / "deploy" / "models"
DIGIT = (ROOT / "deploy" / "digits" / "7.json").read_bytes()
JSON = {"Content-Type": "application/json"}
KEYS = {"AWS_ACCESS_KEY_ID": "emulator", "AWS_SECRET_ACCESS_KEY": "emulator"}


@pytest.fixture(scope="module")
def storage() -> Iterator[S3Emulator]:
    """A storage of the shipped models at the manifest's address."""
    _, _, bucket, prefix = manifests("overlays/aws").settings.model_repository[0].split("/", 3)
    with S3Emulator() as emulator:
        for file in MODELS.rglob("*.*"):
            emulator.put(bucket, f"{prefix}/{file.relative_to(MODELS)}", file.read_bytes())
        yield emulator


def assert_serves(pod: ServerProcess, stack: Manifests) -> None:
    """Every probe, a request, and the metrics page at Prometheus' address must be answered."""
    for probe in stack.probes.values():
        assert pod.request("GET", probe["httpGet"]["path"])[0] == 200
    status, _, answer = pod.request("POST", "/v2/models/digits/infer", DIGIT, JSON)
    assert status == 200, answer
    assert json.loads(answer)["outputs"][0]["data"][0].endswith(":7:seven")
    assert "nv_inference_pending_request_count{" in pod.request("GET", "/metrics", port=pod.metrics_port)[2].decode()


def test_pod_serves_models_from_s3_and_drains(storage: S3Emulator, tmp_path: Path) -> None:
    stack = manifests("overlays/aws")
    pod = KubernetesPod(stack, tmp_path, {}, **KEYS, AWS_ENDPOINT_URL_S3=storage.endpoint)
    with pod:
        assert_serves(pod, stack)
        assert list(pod.path(stack.settings.model_cache_directory).rglob("model.onnx"))
        pod.process.send_signal(signal.SIGTERM)
        readiness = stack.probes["readinessProbe"]["httpGet"]["path"]
        until(lambda: pod.request("GET", readiness)[0] != 200, pod.log_text)
        # Requests in flight are still answered.
        assert pod.request("POST", "/v2/models/digits/infer", DIGIT, JSON)[0] == 200
        assert pod.process.wait(stack.pod["terminationGracePeriodSeconds"]) == 0


def test_pod_serves_models_from_a_volume_and_answers_kedas_query(tmp_path: Path) -> None:
    stack, scaled = manifests("overlays/volume"), manifests("overlays/gcp-keda")
    (trigger,) = scaled.one("ScaledObject")["spec"]["triggers"]
    # The labels of the PodMonitor: the operator adds the namespace, the release is a label of the pod.
    labels = {
        "namespace": scaled.one("PodMonitor")["metadata"]["namespace"],
        "release": scaled.template["metadata"]["labels"]["app.kubernetes.io/instance"],
    }
    # Another test covers the drain.
    pod = KubernetesPod(stack, tmp_path, {"/models": MODELS}, TRIDENT_SHUTDOWN_GRACE_SECS="0")
    with pod:
        assert_serves(pod, stack)
        target = {"targets": [f"{HOST}:{pod.metrics_port}"], "labels": labels}
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "trident/trident", "static_configs": [target]}],
        }
        with Prometheus(tmp_path, config) as prometheus:
            (pending,) = finite(prometheus.wait_for(trigger["metadata"]["query"], finite))
            assert pending == 0


@pytest.mark.parametrize("folder", [MODELS, MODELS / "digits"], ids=["a repository", "one model"])
def test_kserve_pod_serves(tmp_path: Path, folder: Path) -> None:
    stack = manifests("kserve")
    with KubernetesPod(stack, tmp_path, {"/mnt/models": folder}) as pod:
        assert_serves(pod, stack)
        pod.kill()  # another test covers the drain
