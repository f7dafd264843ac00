"""deploy/kubernetes: Kubernetes accepts the built objects, and they fit each other and the server."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

import trident.app.supervisor.arbiter
from docs.lists import metric_rows
from tests.contract.deploy.kubernetes_manifests import (
    CUSTOM,
    OVERLAYS,
    PARTS,
    SERVERS,
    Manifests,
    Object,
    copied_tree,
    kustomized,
    manifests,
    refused,
    refused_by_kserve,
    size_of,
    validate,
)
from tests.needed import program
from tests.project import ROOT
from trident.app.settings.reading import read_settings

pytestmark = pytest.mark.slow

WHOLE = tuple(f"overlays/{name}" for name in OVERLAYS)
EVERYTHING = (*SERVERS, *(f"parts/{name}" for name in PARTS), *WHOLE, "kserve", "kserve-gpu")
STARTED = (*WHOLE, "kserve", "kserve-gpu")
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
    validate(*objects)


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


def test_services_target_ports_of_the_container(whole: Manifests) -> None:
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


def test_network_policy_lets_the_server_reach_the_addresses_of_its_options(whole: Manifests) -> None:
    rules = [rule for each in whole.of("NetworkPolicy") for rule in each["spec"].get("egress", [])]
    anywhere = {(port["protocol"], port["port"]) for rule in rules if "to" not in rule for port in rule["ports"]}
    assert anywhere == {("UDP", 53), ("TCP", 53), ("TCP", 443), ("TCP", 6379), ("TCP", 4318)}
    metadata = {each["ipBlock"]["cidr"] for rule in rules for each in rule.get("to", [])}
    on_gke = whole.settings.model_repository[0].startswith("gs://")
    assert metadata == ({"169.254.169.252/32", "169.254.169.254/32"} if on_gke else set())


def test_annotations_give_prometheus_port_and_path(started: Manifests) -> None:
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
    kinds = CUSTOM - {"ClusterServingRuntime", "InferencePool"}
    made = [each for name in EVERYTHING for each in manifests(name).of(*kinds)]
    assert {each["kind"] for each in made} == kinds
    assert refused(made) == []


# --- the autoscalers, their metric, and how Prometheus scrapes it


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_autoscaled_manifest_sets_no_replicas(overlay: str) -> None:
    whole = manifests(f"overlays/{overlay}")
    assert "replicas" not in whole.one("Deployment")["spec"]
    autoscalers = whole.of("HorizontalPodAutoscaler", "ScaledObject")
    assert len(autoscalers) <= 1
    for each in autoscalers:
        name = whole.one("Deployment")["metadata"]["name"]
        assert each["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}


def test_autoscalers_query_a_metric_of_the_server() -> None:
    known = {row.name for row in metric_rows() if row.type == "gauge"}
    (metric,) = manifests("parts/hpa").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    names = {metric["pods"]["metric"]["name"]}
    names |= set(re.findall(r"\bnv_\w+", _trigger(manifests("parts/keda"))["query"]))
    assert names == {"nv_inference_pending_request_count"}
    assert names <= known


def test_scaled_object_has_bounds_and_a_query() -> None:
    stack = manifests("overlays/gcp-keda")
    scaled = stack.one("ScaledObject")
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    spec = scaled["spec"]
    assert (spec["pollingInterval"], spec["cooldownPeriod"]) == (15, 300)
    assert 0 < spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert 300 <= behavior["scaleDown"]["stabilizationWindowSeconds"] <= 600
    # It becomes that of a HorizontalPodAutoscaler.
    made = manifests("parts/hpa").one("HorizontalPodAutoscaler")
    validate({**made, "spec": {**made["spec"], "behavior": behavior}})
    trigger = _trigger(stack)
    assert all(isinstance(value, str) for value in trigger.values())
    # The labels of the query are those that the PodMonitor beside it gives.
    labels = dict(re.findall(r'(\w+)="(\w+)"', trigger["query"]))
    assert labels == {
        "namespace": scaled["metadata"]["namespace"],
        "release": stack.template["metadata"]["labels"]["app.kubernetes.io/instance"],
    }


# The series of five busy minutes, then of five without requests, with a value every 15 seconds.
_BUSY = {
    'nv_inference_request_success{namespace="trident",release="trident",model="a"}': "0+150x20 3000x20",
    'nv_inference_request_success{namespace="trident",release="trident",model="b"}': "0+150x20 3000x20",
    'nv_inference_queue_duration_us{namespace="trident",release="trident",model="a"}': "0+30000000x20 600000000x20",
    'nv_inference_queue_duration_us{namespace="trident",release="trident",model="b"}': "0x40",
    'nv_inference_pending_request_count{namespace="trident",release="trident",model="a"}': "12x19 0x20",
    'nv_inference_pending_request_count{namespace="trident",release="other",model="a"}': "99x40",
    **{
        "trident_inference_request_duration_seconds_bucket"
        f'{{namespace="trident",release="trident",le="{limit}"}}': f"0+{count}x20 {20 * count}x20"
        for limit, count in (("0.1", 135), ("0.5", 150), ("+Inf", 150))
    },
}


@pytest.mark.parametrize(
    ("part", "busy"),
    [
        # 12 for the pods together; 120 s of queue for 1,200 requests; nine tenths of the way from 0.1 to 0.5 s.
        ("keda", 12),
        ("keda-queue", 0.1),
        ("keda-p99", 0.46),
    ],
)
def test_query_follows_the_load_and_is_0_without_requests(part: str, busy: float, tmp_path: Path) -> None:
    query = _query(part)
    scenarios: list[tuple[dict[str, str], list[tuple[str, float | None]]]] = [
        (_BUSY, [("4m30s", busy), ("8m", 0)]),
        # Missing series are no number at all, so that KEDA falls back.
        ({}, [("5m", None)]),
    ]
    tests = [
        {
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f"round({query}, 0.001)",
                    "eval_time": time,
                    "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
                }
                for time, value in expected
            ],
        }
        for series, expected in scenarios
    ]
    file = tmp_path / "query_test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    command = [program("promtool", "apt install prometheus"), "test", "rules", str(file)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def _query(part: str) -> str:
    query: str = manifests(f"parts/{part}").one("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    return query


def _trigger(stack: Manifests) -> dict[str, Any]:
    (trigger,) = stack.one("ScaledObject")["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    metadata: dict[str, Any] = trigger["metadata"]
    return metadata


def test_pod_monitor_selects_the_pods() -> None:
    stack = manifests("overlays/gcp-keda")
    monitor = stack.one("PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (stack.port(endpoint["port"]), endpoint["path"]) == (stack.settings.metrics_port, "/metrics")
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["targetLabel"] == "release"
    (source,) = relabeling["sourceLabels"]
    labels = {re.sub(r"\W", "_", name) for name in stack.template["metadata"]["labels"]}
    assert source.removeprefix("__meta_kubernetes_pod_label_") in labels
    # The operator's name of the job, which the rules know the servers by.
    assert "trident" in f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"


# --- KServe's runtime and its services


_POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}}
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
    validate({**_POD, "spec": {"containers": spec["containers"], "volumes": spec["volumes"]}})
    assert stack.settings.model_repository == ("/mnt/models",)
    assert stack.settings.http_port == 8080
    assert stack.settings.grpc_port == 9000
    assert spec["protocolVersions"] == ["v2", "grpc-v2"]
    taken = [each["name"] for each in spec["supportedModelFormats"] if each.get("autoSelect")]
    assert taken == ["trident"]
    # KServe's Triton is given this by the webhook, where a service has no `storageUri`.
    assert runtime["metadata"]["annotations"] == {"serving.kserve.io/server-type": "tritonserver"}
    given = [*stack.container["args"], "--model-control-mode=explicit"]
    assert read_settings(given[1:], stack.environment).model_control_mode == "explicit"


SAMPLES = ROOT / "deploy" / "kubernetes" / "kserve" / "samples"
_SHELF = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def test_runtimes_and_samples_pass_kserves_validation() -> None:
    (shelf,) = _SHELF.findall((ROOT / "docs" / "models-on-demand.md").read_text())
    texts = [shelf, *(path.read_text() for path in SAMPLES.iterdir())]
    objects = [each for text in texts for each in yaml.safe_load_all(text)]
    objects += [manifests(name).one("ClusterServingRuntime") for name in ("kserve", "kserve-gpu")]
    assert {each["kind"] for each in objects} == {
        "InferenceService",
        "ClusterServingRuntime",
        "LocalModelCache",
        "LocalModelNodeGroup",
    }
    assert refused_by_kserve(objects) == []
    wrong = {**objects[0], "spec": {"predictor": {"modell": {}}, "canary": [{"trafficPercent": 10}]}}
    assert [line.partition(" ")[0] for line in refused_by_kserve([wrong])] == [
        "shelf.spec.predictor",
        "shelf.spec.canary[0]",
    ]


@pytest.mark.parametrize(
    ("name", "scheme", "model"),
    [
        ("s3", "s3://", "digits"),
        ("grpc", "s3://", "digits"),
        ("gs-keda", "gs://", "simple"),
        ("canary", "s3://", "digits"),
        ("oci", "oci+native://", "digits"),
        ("logger", "s3://", "digits"),
    ],
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


def test_service_of_many_models_replaces_the_repository() -> None:
    """KServe adds a service's arguments to those of the runtime, and replaces variables by name."""
    (shelf,) = _SHELF.findall((ROOT / "docs" / "models-on-demand.md").read_text())
    asked, container = yaml.safe_load(shelf)["spec"]["predictor"]["model"], manifests("kserve").container
    variables = {each["name"]: each["value"] for each in (*container["env"], *asked["env"])}
    service = {"INFERENCE_SERVICE_NAME": "shelf"}
    settings = read_settings([*container["args"][1:], *asked["args"]], {**variables, **service})
    assert settings.model_repository == ("s3://models-of-mine/shelf",)
    assert settings.model_control_mode == "demand"


def test_grpc_sample_service_names_both_ports() -> None:
    """KServe finds the port of gRPC by its name; the first is the service's port 80. The runtime has none to add."""
    service, _ = _sample("grpc")
    rest, grpc = service["spec"]["predictor"]["model"]["ports"]
    runtime = manifests("kserve")
    assert (grpc["name"], grpc["containerPort"]) == ("h2c", runtime.settings.grpc_port)
    assert (rest["name"], rest["containerPort"]) == ("http", runtime.settings.http_port)
    assert "ports" not in runtime.container


def test_canary_passes_kserves_webhook() -> None:
    service, _ = _sample("canary")
    spec = service["spec"]
    assert service["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
    (canary,) = spec["canary"]
    assert 0 <= canary["trafficPercent"] <= 100
    asked = canary["predictor"]
    assert set(asked) == {"name", "minReplicas", "model"}
    assert asked["minReplicas"] <= spec["predictor"]["minReplicas"]
    named = {**asked["model"], "storageUri": spec["predictor"]["model"]["storageUri"]}
    assert named == {**spec["predictor"]["model"], "name": manifests("kserve").container["name"]}


def test_logged_headers_have_gos_canonical_form() -> None:
    """KServe's agent compares them as text."""
    headers = _sample("logger")[0]["spec"]["predictor"]["logger"]["metadataHeaders"]
    assert headers == [name.title() for name in headers]


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
    validate({**_POD, "spec": {"containers": [server, transformer]}})
    settings = read_settings(server["args"][1:], {"INFERENCE_SERVICE_NAME": service["metadata"]["name"]})
    assert f"--predictor_host=localhost:{settings.http_port}" in transformer["args"]
    assert settings.single_model == service["metadata"]["name"]
    assert server["readinessProbe"]["httpGet"]["port"] == settings.http_port
    assert settings.shutdown_grace_secs + settings.exit_timeout_secs < GRACE_S


def test_model_cache_is_for_the_models_of_the_sample() -> None:
    group, cache = yaml.safe_load_all((SAMPLES / "model-cache.yaml").read_text())
    assert cache["spec"]["sourceModelUri"] == _sample("s3")[0]["spec"]["predictor"]["model"]["storageUri"]
    assert cache["spec"]["nodeGroups"] == [group["metadata"]["name"]]
    claim, volume = group["spec"]["persistentVolumeClaimSpec"], group["spec"]["persistentVolumeSpec"]
    validate({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": claim})
    validate({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": volume})


def _sample(name: str) -> tuple[Object, Object]:
    """An InferenceService and the metric of its autoscaler."""
    service: Object = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    metrics = service["spec"]["predictor"].get("autoScaling", {}).get("metrics", [])
    return service, metrics[0]["external"]["metric"] if metrics else {}


# --- docs/kubernetes.md: its commands, its example, its table of folders, and its figures


GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(kubectl kustomize[^`]*)`")
TABLE_ROW = re.compile(r"^\| `([\w/-]+)` \|", re.MULTILINE)
SECOND = re.compile(r"^\| (\d+) \| (.*) \|$", re.MULTILINE)
COMMANDS = [
    shlex.split(command)
    for text in [*(text for kind, text in BLOCK.findall(GUIDE) if kind == "bash"), *INLINE.findall(GUIDE)]
    for command in re.split(r"\n|&&", text)
    if command.strip().startswith("kubectl")
]
FOLDERS = [command[command.index(word) + 1] for command in COMMANDS for word in ("-k", "kustomize") if word in command]
FILES = [command[command.index("-f") + 1] for command in COMMANDS if "-f" in command]


@pytest.mark.parametrize("folder", FOLDERS)
def test_applied_folder_builds(folder: str) -> None:
    assert kustomized(ROOT / folder)


def test_documented_files_exist() -> None:
    assert len(FOLDERS) >= 3
    assert FILES
    for file in FILES:
        assert yaml.safe_load((ROOT / file).read_text())["kind"] == "InferenceService"


def test_documented_overlay_builds(tmp_path: Path) -> None:
    own = copied_tree(tmp_path) / "overlays" / "own"
    own.mkdir()
    for text in [text for kind, text in BLOCK.findall(GUIDE) if kind == "yaml"]:
        (own / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    stack = Manifests(kustomized(own))
    validate(*stack.of("Deployment", "ServiceAccount", "ConfigMap", "NetworkPolicy"))
    assert stack.settings.model_repository == ("gs://my-bucket/models",)
    assert (stack.settings.model_control_mode, stack.settings.load_model) == ("explicit", ("*",))
    assert stack.settings.log_format == "json"
    assert stack.container["image"] == "registry.example.com/trident:gpu"
    annotations = stack.one("ServiceAccount")["metadata"]["annotations"]
    assert annotations == {"iam.gke.io/gcp-service-account": "trident@my-project.iam.gserviceaccount.com"}


def test_documented_table_has_every_folder() -> None:
    assert set(TABLE_ROW.findall(GUIDE)) == set(EVERYTHING)


def test_documented_shutdown_seconds_match_the_pod() -> None:
    stack = manifests("overlays/aws")
    settings = stack.settings
    wait = int(stack.container["lifecycle"]["preStop"]["exec"]["command"][1])
    closed = wait + int(settings.shutdown_grace_secs)
    told = {int(second): what for second, what in SECOND.findall(GUIDE)}
    assert list(told)[:4] == [0, wait, closed, closed + settings.exit_timeout_secs]
    assert "SIGTERM" in told[wait]
    assert "terminationGracePeriodSeconds" in told[stack.pod["terminationGracePeriodSeconds"]]


def test_documented_figures_match_the_autoscalers() -> None:
    hpa = manifests("parts/hpa").one("HorizontalPodAutoscaler")["spec"]
    keda = manifests("parts/keda").one("ScaledObject")["spec"]
    (pods,), (trigger,) = hpa["metrics"], keda["triggers"]
    for target, least, most in (
        (pods["pods"]["target"]["averageValue"], hpa["minReplicas"], hpa["maxReplicas"]),
        (trigger["metadata"]["threshold"], keda["minReplicaCount"], keda["maxReplicaCount"]),
    ):
        assert f"aim at {target} pending requests" in GUIDE
        assert f"with {least} to {most} pods" in GUIDE
    assert f"every {keda['pollingInterval']} seconds" in GUIDE
    assert f"keeps {keda['fallback']['replicas']} pods" in GUIDE
