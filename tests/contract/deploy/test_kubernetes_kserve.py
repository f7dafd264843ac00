"""deploy/kubernetes/kserve: the runtime and its services."""

from __future__ import annotations

import re

import pytest
import yaml

from docs.lists import metric_rows
from tests.contract.deploy.kubernetes_manifests import Object, manifests, validate
from tests.project import ROOT
from trident.app.settings.reading import read_settings

pytestmark = pytest.mark.slow

# The default time that Kubernetes gives a pod to end.
GRACE_S = 30


def test_kserve_pod_outlives_its_drain() -> None:
    settings = manifests("kserve").settings
    assert settings.shutdown_grace_secs + settings.exit_timeout_secs < GRACE_S


def test_serving_runtime_fits_the_server() -> None:
    stack = manifests("kserve")
    runtime = stack.one("ClusterServingRuntime")
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1"
    spec = runtime["spec"]
    assert set(spec) <= {"annotations", "supportedModelFormats", "protocolVersions", "containers", "volumes"}
    assert stack.container["name"] == "kserve-container"
    # What it takes of a pod must be a pod's.
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}}
    validate({**pod, "spec": {"containers": spec["containers"], "volumes": spec["volumes"]}})
    assert stack.settings.model_repository == ("/mnt/models",)
    assert stack.settings.http_port == 8080
    assert stack.settings.grpc_port == 9000
    assert spec["protocolVersions"] == ["v2", "grpc-v2"]
    taken = [each["name"] for each in spec["supportedModelFormats"] if each.get("autoSelect")]
    assert taken == ["trident"]


@pytest.mark.parametrize(
    ("name", "scheme", "model"),
    [("s3", "s3://", "digits"), ("grpc", "s3://", "digits"), ("gs-keda", "gs://", "simple")],
)
def test_sample_service_uses_the_runtime(name: str, scheme: str, model: str) -> None:
    service, _ = _sample(name)
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    # A model that ships, so that it can be asked for by the name of the service.
    assert service["metadata"]["name"] == model
    assert (ROOT / "deploy" / "models" / model).is_dir()
    runtime = manifests("kserve").one("ClusterServingRuntime")
    asked = service["spec"]["predictor"]["model"]
    assert asked["runtime"] == runtime["metadata"]["name"]
    assert asked["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert asked["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert asked["storageUri"].startswith(scheme)


def test_sample_service_of_grpc_names_its_port() -> None:
    service, _ = _sample("grpc")
    (port,) = service["spec"]["predictor"]["model"]["ports"]
    assert (port["name"], port["containerPort"]) == ("h2c", manifests("kserve").settings.grpc_port)


def test_sample_service_is_autoscaled() -> None:
    service, metric = _sample("gs-keda")
    annotations = service["metadata"]["annotations"]
    assert annotations["serving.kserve.io/autoscalerClass"] == "keda"
    assert annotations["serving.kserve.io/deploymentMode"] == "Standard"
    predictor = service["spec"]["predictor"]
    assert 0 < predictor["minReplicas"] < predictor["maxReplicas"]
    assert metric["backend"] == "prometheus"
    assert set(re.findall(r"\bnv_\w+", metric["query"])) <= {row.name for row in metric_rows()}
    assert f'pod=~"{service["metadata"]["name"]}-predictor-' in metric["query"]


def test_transformer_calls_the_server_in_its_pod() -> None:
    service, _ = _sample("transformer")
    server, transformer = service["spec"]["predictor"]["containers"]
    validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [server, transformer]}}
    )
    settings = read_settings(server["args"][1:], {})
    assert f"--predictor_host=localhost:{settings.http_port}" in transformer["args"]
    assert settings.single_model == service["metadata"]["name"]
    assert server["readinessProbe"]["httpGet"]["port"] == settings.http_port
    assert settings.shutdown_grace_secs + settings.exit_timeout_secs < GRACE_S


def test_model_cache_is_for_the_models_of_the_sample() -> None:
    path = ROOT / "deploy" / "kubernetes" / "kserve" / "samples" / "model-cache.yaml"
    group, cache = yaml.safe_load_all(path.read_text())
    assert cache["spec"]["sourceModelUri"] == _sample("s3")[0]["spec"]["predictor"]["model"]["storageUri"]
    assert cache["spec"]["nodeGroups"] == [group["metadata"]["name"]]
    claim, volume = group["spec"]["persistentVolumeClaimSpec"], group["spec"]["persistentVolumeSpec"]
    validate({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": claim})
    validate({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": volume})


def _sample(name: str) -> tuple[Object, Object]:
    """An InferenceService and the metric of its autoscaler."""
    path = ROOT / "deploy" / "kubernetes" / "kserve" / "samples" / f"{name}.yaml"
    service: Object = yaml.safe_load(path.read_text())
    metrics = service["spec"]["predictor"].get("autoScaling", {}).get("metrics", [])
    return service, metrics[0]["external"]["metric"] if metrics else {}
