"""deploy/kubernetes: Kubernetes accepts the built objects, and they fit each other and the server."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

import trident.app.supervisor.arbiter
from tests.contract.deploy.kubernetes_manifests import (
    OVERLAYS,
    PARTS,
    SERVERS,
    Manifests,
    copied_tree,
    kustomized,
    manifests,
    refused,
    size_of,
    validate,
)
from tests.project import ROOT

pytestmark = pytest.mark.slow

WHOLE = tuple(f"overlays/{name}" for name in OVERLAYS)
EVERYTHING = (*SERVERS, *(f"parts/{name}" for name in PARTS), *WHOLE, "kserve", "kserve-gpu")
STARTED = (*WHOLE, "kserve", "kserve-gpu")
CUSTOM = {"ScaledObject", "PodMonitor", "PrometheusRule", "ClusterServingRuntime"}
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
# From Kubernetes' Pod Security Standard "restricted".
RESTRICTED_VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


@pytest.fixture(params=STARTED)
def started(request: pytest.FixtureRequest) -> Manifests:
    return manifests(request.param)


@pytest.fixture(params=WHOLE)
def whole(request: pytest.FixtureRequest) -> Manifests:
    return manifests(request.param)


@pytest.mark.parametrize("folder", EVERYTHING)
def test_every_object_is_valid_for_kubernetes(folder: str) -> None:
    objects = manifests(folder).objects
    assert objects
    for each in objects:
        if each["kind"] not in CUSTOM:
            validate(each)


def test_every_folder_is_built_by_a_test() -> None:
    root = ROOT / "deploy" / "kubernetes"
    folders = {str(path.parent.relative_to(root)) for path in root.rglob("kustomization.yaml")}
    assert folders == set(EVERYTHING)


def test_server_knows_and_uses_all_settings(started: Manifests) -> None:
    settings = started.settings
    assert settings.without_effect == ()
    assert settings.warnings == ()
    given = {name for name in started.environment if name.startswith("TRIDENT_")}
    assert {name for name in given if not started.environment[name]} == set()
    assert len(settings.model_repository) == 1


def test_ports_are_those_of_the_server(started: Manifests) -> None:
    settings = started.settings
    asked = [probe["httpGet"] for probe in started.probes.values() if "httpGet" in probe]
    assert {started.port(each["port"]) for each in asked} == {settings.http_port}
    assert {probe["grpc"]["port"] for probe in started.probes.values() if "grpc" in probe} <= {settings.grpc_port}
    # KServe needs only the port for requests.
    opened = {settings.http_port}
    if "http" in started.ports:
        opened |= {settings.grpc_port, settings.metrics_port}
    assert set(started.ports.values()) == opened


def test_probes_have_their_paths(started: Manifests) -> None:
    # All of them over HTTP: a server may have no gRPC.
    paths = {name: probe["httpGet"]["path"] for name, probe in started.probes.items()}
    assert paths.pop("livenessProbe") == "/v2/health/live"
    assert set(paths.values()) == {"/v2/health/ready"}
    assert "readinessProbe" in paths


def test_start_has_ten_minutes_and_rollouts_wait_for_it(whole: Manifests) -> None:
    probe = whole.probes["startupProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (5, 120)
    assert whole.one("Deployment")["spec"]["progressDeadlineSeconds"] > 5 * 120


def test_pod_outlives_its_drain(whole: Manifests) -> None:
    settings = whole.settings
    word, seconds = whole.container["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    for_hanging = trident.app.supervisor.arbiter._STOP_RESERVE_S + trident.app.supervisor.arbiter._MIN_ENGINE_STOP_S
    drain = int(seconds) + settings.shutdown_grace_secs + settings.exit_timeout_secs + for_hanging
    assert whole.pod["terminationGracePeriodSeconds"] > drain


def test_selectors_are_labels_of_the_pods(whole: Manifests) -> None:
    labels = whole.template["metadata"]["labels"].items()
    selectors = [each["spec"]["selector"] for each in whole.of("Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in whole.of(*_SELECTING)]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in whole.of("NetworkPolicy")]
    selectors += [each["labelSelector"]["matchLabels"] for each in whole.pod["topologySpreadConstraints"]]
    assert len(selectors) >= 7
    for selector in selectors:
        assert selector
        assert selector.items() <= labels


_SELECTING = ("Deployment", "PodDisruptionBudget", "PodMonitor")


def test_services_lead_to_ports_of_the_container(whole: Manifests) -> None:
    by_name = {each["metadata"]["name"]: each["spec"] for each in whole.of("Service")}
    assert by_name["trident-headless"]["clusterIP"] == "None"
    for spec in by_name.values():
        assert {port["name"]: port["port"] for port in spec["ports"]}.items() <= whole.ports.items()
        assert {port["targetPort"] for port in spec["ports"]} <= set(whole.ports)
    assert {port["name"] for port in by_name["trident"]["ports"]} == {"http", "grpc", "metrics"}


def test_network_policy_admits_clients_metrics_and_probes(whole: Manifests) -> None:
    settings = whole.settings
    rules = [rule for each in whole.of("NetworkPolicy") for rule in each["spec"].get("ingress", [])]
    sources = {whole.port(port["port"]): rule.get("from") for rule in rules for port in rule["ports"]}
    anyone = dict.fromkeys((settings.http_port, settings.grpc_port))
    assert sources == {**anyone, settings.metrics_port: [{"namespaceSelector": {}}]}


def test_network_policy_lets_the_server_reach_what_its_options_name(whole: Manifests) -> None:
    rules = [rule for each in whole.of("NetworkPolicy") for rule in each["spec"].get("egress", [])]
    anywhere = {(port["protocol"], port["port"]) for rule in rules if "to" not in rule for port in rule["ports"]}
    assert anywhere == {("UDP", 53), ("TCP", 53), ("TCP", 443), ("TCP", 6379), ("TCP", 4318)}
    metadata = {each["ipBlock"]["cidr"] for rule in rules for each in rule.get("to", [])}
    on_gke = whole.settings.model_repository[0].startswith("gs://")
    assert metadata == ({"169.254.169.252/32", "169.254.169.254/32"} if on_gke else set())


def test_annotations_tell_prometheus_port_and_path(started: Manifests) -> None:
    if started.of("ClusterServingRuntime"):
        annotations, prefix = started.pod["annotations"], "prometheus.kserve.io"
    else:
        annotations, prefix = started.template["metadata"]["annotations"], "prometheus.io"
    assert annotations[f"{prefix}/port"] == str(started.settings.metrics_port)
    assert annotations[f"{prefix}/path"] == "/metrics"


def test_pod_meets_the_restricted_standard(started: Manifests) -> None:
    container = {**started.pod.get("securityContext", {}), **started.container["securityContext"]}
    assert container["runAsNonRoot"] is True
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"USER {container['runAsUser']}:1000" in DOCKERFILE
    kinds = {kind for volume in started.pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= RESTRICTED_VOLUMES


def test_server_writes_to_volumes_only(started: Manifests) -> None:
    writable = {path: volume["emptyDir"] for path, volume in started.mounts.items() if "emptyDir" in volume}
    assert {"/tmp", "/dev/shm"} <= set(writable)
    assert writable["/dev/shm"]["medium"] == "Memory"
    settings = started.settings
    written = [started.environment.get("CUDA_CACHE_PATH", "/tmp")]
    if "://" in settings.model_repository[0]:
        written.append(settings.model_cache_directory)
        (cache,) = [volume for path, volume in writable.items() if _is_below(settings.model_cache_directory, path)]
        assert 0 < settings.model_cache_bytes < size_of(cache["sizeLimit"])
    for path in written:
        assert any(_is_below(path, mount) or path == mount for mount in writable), path


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(folder) in PurePosixPath(path).parents


def test_images_are_stages_of_the_dockerfile(started: Manifests) -> None:
    name, _, tag = started.container["image"].partition(":")
    assert name == "trident"
    assert f" AS {tag}\n" in DOCKERFILE
    asks_for_gpu = "nvidia.com/gpu" in started.container["resources"]["limits"]
    assert (tag == "gpu") == asks_for_gpu


def test_gpu_pod_tolerates_gpu_nodes() -> None:
    stack = manifests("overlays/aws-gpu")
    assert stack.container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert stack.pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_models_come_from_the_storage_of_the_overlay() -> None:
    found = {name: manifests(f"overlays/{name}").settings.model_repository[0] for name in OVERLAYS}
    schemes = {"aws": "s3://", "gcp": "gs://", "volume": "/models"}
    for name, repository in found.items():
        assert repository.startswith(schemes[name.partition("-")[0]])


def test_identities_come_from_the_cloud_without_keys(whole: Manifests) -> None:
    account = whole.one("ServiceAccount")
    assert whole.pod["serviceAccountName"] == account["metadata"]["name"]
    assert whole.pod["automountServiceAccountToken"] is False
    scheme = whole.settings.model_repository[0].partition("://")[0]
    names = {"s3": {"eks.amazonaws.com/role-arn"}, "gs": {"iam.gke.io/gcp-service-account"}}
    assert set(account["metadata"].get("annotations", {})) == names.get(scheme, set())
    assert whole.of("Secret") == []


def test_models_on_a_volume_are_read_only() -> None:
    stack = manifests("overlays/volume")
    (repository,) = stack.settings.model_repository
    (mount,) = [each for each in stack.container["volumeMounts"] if each["mountPath"] == repository]
    assert mount["readOnly"] is True
    claim = stack.mounts[repository]["persistentVolumeClaim"]
    assert claim == {"claimName": stack.one("PersistentVolumeClaim")["metadata"]["name"], "readOnly": True}


def test_all_objects_are_in_one_namespace(whole: Manifests) -> None:
    name = whole.one("Namespace")["metadata"]["name"]
    assert {each["metadata"]["namespace"] for each in whole.objects if each["kind"] != "Namespace"} == {name}
    assert whole.objects[0]["kind"] == "Namespace"


def test_changed_setting_renames_the_config_map(tmp_path: Path) -> None:
    tree = copied_tree(tmp_path)
    before = _mounted_maps(Manifests(kustomized(tree / "overlays" / "aws")))
    settings = tree / "base" / "kustomization.yaml"
    settings.write_text(settings.read_text().replace("LOG_FORMAT=json", "LOG_FORMAT=default"))
    after = _mounted_maps(Manifests(kustomized(tree / "overlays" / "aws")))
    assert len(before & after) == 1
    assert len(before) == len(after) == 2


def _mounted_maps(stack: Manifests) -> set[str]:
    return {each["configMapRef"]["name"] for each in stack.container["envFrom"]}


def test_custom_resources_fit_their_definitions() -> None:
    kinds = CUSTOM - {"ClusterServingRuntime"}
    made = [each for name in EVERYTHING for each in manifests(name).of(*kinds)]
    assert {each["kind"] for each in made} == kinds
    assert refused(made) == []
