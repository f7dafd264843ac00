"""deploy/kubernetes: a server that is started as in its pods answers the probes and drains in time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.contract.deploy.compose_stack import image_words
from tests.contract.deploy.kubernetes_manifests import Manifests, manifests
from tests.contract.deploy.prometheus import Prometheus, finite
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess, environment_without
from tests.project import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

MODELS = ROOT / "deploy" / "models"
DIGIT = (ROOT / "deploy" / "digits" / "7.json").read_bytes()
JSON = {"Content-Type": "application/json"}
KEYS = {"AWS_ACCESS_KEY_ID": "emulator", "AWS_SECRET_ACCESS_KEY": "emulator"}


# --- the container of a pod as a process of this machine, with its command and environment


_PLATFORMS = ("AIP_", "AWS_", "CLOUDSDK_", "GCE_", "GOOGLE_", "SAGEMAKER_", "STORAGE_", "TRIDENT_", "TRITON_")
_NO_MACHINE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}


class KubernetesPod(ServerProcess):
    """A context manager, as every ServerProcess. `contents` maps paths of the container to folders of this machine.

    `variables` are those that the cluster or the cloud adds to the container's environment.
    """

    def __init__(self, manifests: Manifests, folder: Path, contents: Mapping[str, Path], **variables: str) -> None:
        settings = manifests.settings
        super().__init__(settings.model_repository[0], folder / "log")
        self._manifests = manifests
        self._ports = {
            settings.http_port: self.http_port,
            settings.grpc_port: self.grpc_port,
            settings.metrics_port: self.metrics_port,
        }
        self._root = folder / "root"
        self._folders = {*manifests.mounts, *contents}
        for path in manifests.mounts.keys() - contents.keys():
            mounted = self.path(path)
            mounted.mkdir(parents=True)
            mounted.chmod(0o2777)  # as Kubernetes makes an emptyDir
        for path, target in contents.items():
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            self.path(path).symlink_to(target)
        given = {name: self._mapped(text) for name, text in manifests.environment.items()}
        own = {"HOME": str(folder), "TRIDENT_HTTP_ADDRESS": HOST, "TRIDENT_GRPC_ADDRESS": HOST}
        self.environment = {**environment_without(*_PLATFORMS), **_NO_MACHINE, **own, **given, **variables}

    def path(self, path: str) -> Path:
        """The path on this machine of a path in the pod."""
        return self._root / path.lstrip("/")

    @property
    def command(self) -> list[str]:
        (program,) = image_words("ENTRYPOINT")
        installed = Path(super().command[0]).with_name(program)
        return [str(installed), *map(self._mapped, self._manifests.container["args"])]

    def _mapped(self, text: str) -> str:
        """A value, or an argument with a value, mapped to this machine."""
        name, equals, value = text.rpartition("=") if text.startswith("--") else ("", "", text)
        if value.isdigit() and int(value) in self._ports and (not name or name.endswith("-port")):
            value = str(self._ports[int(value)])
        elif any(value == folder or value.startswith(f"{folder}/") for folder in self._folders):
            value = str(self.path(value))
        return f"{name}{equals}{value}"


# --- tests


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
    with KubernetesPod(stack, tmp_path, {"/mnt/models": folder}, INFERENCE_SERVICE_NAME="digits") as pod:
        assert_serves(pod, stack)
        pod.kill()  # another test covers the drain
