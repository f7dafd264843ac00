"""deploy/helm as Helm renders it: the same servers as the overlays, and what each value does."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.contract.deploy.kubernetes_manifests import OVERLAYS, Manifests, Object, manifests, validate
from tests.needed import program
from tests.project import ROOT

pytestmark = pytest.mark.slow

HELM = ROOT / "deploy" / "helm"
CHART = HELM / "trident"
_LIMIT_S = 60


def helm(values: Object | None = None, base: str = "aws") -> subprocess.CompletedProcess[str]:
    command = [
        program("helm", "https://helm.sh"),
        "template",
        "trident",
        str(CHART),
        "--namespace=trident",
        "--values",
        str(HELM / f"values/{base}.yaml"),
    ]
    command += ["--values=-"] if values else []
    return subprocess.run(
        command, input=json.dumps(values), capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )


def rendered(values: Object | None = None, base: str = "aws") -> Manifests:
    finished = helm(values, base)
    assert finished.returncode == 0, finished.stderr
    return Manifests([each for each in yaml.safe_load_all(finished.stdout) if each])


@functools.cache
def example(name: str) -> Manifests:
    return rendered(base=name)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_examples_are_the_overlays(overlay: str) -> None:
    chart, kustomized = example(overlay), manifests(f"overlays/{overlay}")
    validate(*chart.objects)
    assert chart.environment == kustomized.environment
    assert _comparable(chart) == _comparable(kustomized)


@pytest.mark.parametrize(("rule", "part"), [("queue", "keda-queue"), ("p99", "keda-p99")])
def test_rules_of_keda_are_those_of_the_parts(rule: str, part: str) -> None:
    (chart,) = rendered({"autoscaling": {"rule": rule}}, "gcp-keda").of("ScaledObject")
    assert chart["spec"] == manifests(f"parts/{part}").one("ScaledObject")["spec"]


def _comparable(stack: Manifests) -> dict[tuple[str, str], Any]:
    """The objects by kind and name, without what Helm adds, the environment (compared as a whole) and the namespace."""
    found: dict[tuple[str, str], Any] = {}
    egress: set[tuple[str, str, int]] = set()
    for each in yaml.safe_load(json.dumps(stack.objects)):
        kind, metadata = each["kind"], each["metadata"]
        metadata.pop("namespace", None)
        for label in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            metadata["labels"] = {name: value for name, value in metadata.get("labels", {}).items() if name != label}
        if kind == "Deployment":
            each["spec"]["template"]["metadata"]["annotations"].pop("checksum/settings", None)
            for container in each["spec"]["template"]["spec"]["containers"]:
                container.pop("env", None)
                container.pop("envFrom")
        elif kind == "NetworkPolicy":
            # Policies add up.
            rules = each["spec"].pop("egress")
            egress |= {
                (str(rule.get("to")), port["protocol"], port["port"]) for rule in rules for port in rule["ports"]
            }
            if "ingress" not in each["spec"]:
                continue
        if kind not in {"Namespace", "ConfigMap"}:
            found[kind, metadata["name"]] = each
    return found | {("NetworkPolicy", "egress"): egress}


_POOL = {"inferencePool": {"picker": "epp"}}
_CLAIM = {"models": {"repository": "", "volume": {"claim": "c"}}}
_MONITORED = {"monitoring": {"enabled": True}}
_KEDA = {"autoscaling": {"kind": "keda"}}
_TRIGGER = "ScaledObject spec triggers 0"
_ROLE = "arn:aws:iam::111122223333:role/a"
_CLIENT = "11111111-2222-3333-4444-555555555555"
_MORE = {"name": "more", "emptyDir": {}}
# A value, what it is given, other values that it needs, and what is then at some places. A missing object is None.
CASES: list[tuple[str, Any, Object, dict[str, Any]]] = [
    ("image.repository", "r.example/t", {}, {"container image": "r.example/t:cpu"}),
    ("image.tag", "7", {}, {"container image": "trident:7"}),
    ("image.pullPolicy", "Always", {}, {"container imagePullPolicy": "Always"}),
    ("image.pullSecrets", ["a"], {}, {"pod imagePullSecrets": [{"name": "a"}]}),
    ("gpus", 2, {}, {"container resources limits nvidia.com/gpu": "2"}),
    ("resources", {"limits": {"cpu": "8"}}, {}, {"container resources": {"limits": {"cpu": "8"}}}),
    ("replicas", 3, {}, {"Deployment spec replicas": 3}),
    ("models.repository", "as://a/c/m", {}, {"environment TRIDENT_MODEL_REPOSITORY": "as://a/c/m"}),
    ("models.cache.volume", "9Gi", {}, {"mounts /var/cache/trident emptyDir sizeLimit": "9Gi"}),
    ("models.cache.bytes", 1 << 33, {}, {"environment TRIDENT_MODEL_CACHE_BYTES": "8589934592"}),
    ("models.volume.claim", "d", _CLAIM, {"mounts /models persistentVolumeClaim claimName": "d"}),
    ("models.volume.create", False, _CLAIM, {"PersistentVolumeClaim": None}),
    ("models.volume.size", "1Ti", _CLAIM, {"PersistentVolumeClaim spec resources requests storage": "1Ti"}),
    ("models.volume.storageClass", "nfs", _CLAIM, {"PersistentVolumeClaim spec storageClassName": "nfs"}),
    ("identity.aws", _ROLE, {}, {"ServiceAccount metadata annotations eks.amazonaws.com/role-arn": _ROLE}),
    ("identity.gcp", "a@b.iam.gserviceaccount.com", {}, {"NetworkPolicy spec egress 3 ports 0 port": 80}),
    (
        "identity.azure",
        _CLIENT,
        {},
        {
            "ServiceAccount metadata annotations azure.workload.identity/client-id": _CLIENT,
            "template metadata labels azure.workload.identity/use": "true",
        },
    ),
    ("serviceAccount.create", False, {}, {"ServiceAccount": None, "pod serviceAccountName": "trident"}),
    ("serviceAccount.name", "own", {}, {"pod serviceAccountName": "own", "ServiceAccount metadata name": "own"}),
    ("settings", {"TRIDENT_CONSOLE": True}, {}, {"environment TRIDENT_CONSOLE": "true"}),
    ("environment", {"A_NUMBER": 10000000}, {}, {"environment A_NUMBER": "10000000"}),
    ("secretEnvironment", ["keys"], {}, {"container envFrom 1": {"secretRef": {"name": "keys"}}}),
    (
        "tls.secret",
        "cert",
        {},
        {
            "mounts /etc/trident/tls secret secretName": "cert",
            "container readinessProbe httpGet scheme": "HTTPS",
            "environment TRIDENT_HTTP_USE_SSL": "true",
            "environment TRIDENT_HTTP_SERVER_CERT": "/etc/trident/tls/tls.crt",
            "environment TRIDENT_HTTP_SERVER_KEY": "/etc/trident/tls/tls.key",
            "environment TRIDENT_GRPC_USE_SSL": "true",
            "environment TRIDENT_GRPC_SERVER_CERT": "/etc/trident/tls/tls.crt",
            "environment TRIDENT_GRPC_SERVER_KEY": "/etc/trident/tls/tls.key",
        },
    ),
    (
        "tokens.secret",
        "clients",
        {},
        {
            "mounts /etc/trident/tokens secret secretName": "clients",
            "environment TRIDENT_AUTH_TOKEN_FILE": "/etc/trident/tokens/tokens",
            "environment TRIDENT_AUTH_TOKEN_SCOPE": "all",
        },
    ),
    ("tokens.scope", "admin", {"tokens": {"secret": "s"}}, {"environment TRIDENT_AUTH_TOKEN_SCOPE": "admin"}),
    ("console", True, {}, {"environment TRIDENT_CONSOLE": "true"}),
    # Not the metrics, which are not for everybody.
    ("service.type", "LoadBalancer", {}, {"Service spec type": "LoadBalancer", "Service spec ports 2": None}),
    ("service.annotations", {"a": "b"}, {}, {"Service metadata annotations": {"a": "b"}}),
    (
        "inferencePool.picker",
        "epp",
        {},
        {
            "InferencePool spec endpointPickerRef": {
                "name": "epp",
                "port": {"number": 9002},
                "failureMode": "FailOpen",
            },
            "InferencePool spec targetPorts": [{"number": 8000}],
            "template metadata labels llm-d.ai/engine-type": "triton",
            "environment TRIDENT_HTTP_METRICS": "true",
        },
    ),
    ("inferencePool.port", 9003, _POOL, {"InferencePool spec endpointPickerRef port number": 9003}),
    (
        "inferencePool.failureMode",
        "FailClose",
        _POOL,
        {"InferencePool spec endpointPickerRef failureMode": "FailClose"},
    ),
    (
        "startup.minutes",
        30,
        {},
        {"container startupProbe failureThreshold": 360, "Deployment spec progressDeadlineSeconds": 2100},
    ),
    (
        "drain.preStop",
        15,
        {},
        {"container lifecycle preStop exec command 1": "15", "pod terminationGracePeriodSeconds": 70},
    ),
    ("drain.grace", 7, {}, {"environment TRIDENT_SHUTDOWN_GRACE_SECS": "7", "pod terminationGracePeriodSeconds": 62}),
    ("drain.exit", 300, {}, {"environment TRIDENT_EXIT_TIMEOUT_SECS": "300", "pod terminationGracePeriodSeconds": 330}),
    ("rollout.maxSurge", 0, {"rollout": {"maxUnavailable": 1}}, {"Deployment spec strategy rollingUpdate maxSurge": 0}),
    ("rollout.maxUnavailable", "25%", {}, {"Deployment spec strategy rollingUpdate maxUnavailable": "25%"}),
    ("disruptionBudget.enabled", False, {}, {"PodDisruptionBudget": None}),
    ("disruptionBudget.maxUnavailable", "50%", {}, {"PodDisruptionBudget spec maxUnavailable": "50%"}),
    ("networkPolicy.enabled", False, {}, {"NetworkPolicy": None}),
    ("networkPolicy.egressPorts", [9000], {}, {"NetworkPolicy spec egress 1 ports 0 port": 9000}),
    ("autoscaling.kind", "hpa", {}, {"HorizontalPodAutoscaler spec maxReplicas": 10, "ScaledObject": None}),
    ("autoscaling.min", 1, _KEDA, {"ScaledObject spec minReplicaCount": 1}),
    ("autoscaling.max", 64, _KEDA, {"ScaledObject spec maxReplicaCount": 64}),
    ("autoscaling.rule", "queue", _KEDA, {f"{_TRIGGER} metricType": "Value"}),
    ("autoscaling.target", 0.5, _KEDA, {f"{_TRIGGER} metadata threshold": "0.5"}),
    ("autoscaling.prometheus", "http://p:9090", _KEDA, {f"{_TRIGGER} metadata serverAddress": "http://p:9090"}),
    ("autoscaling.fallback", 6, _KEDA, {"ScaledObject spec fallback replicas": 6}),
    (
        "monitoring.enabled",
        True,
        {},
        {"PodMonitor metadata name": "trident", "PrometheusRule spec groups 0 name": "trident-servers"},
    ),
    ("monitoring.interval", "5s", _MONITORED, {"PodMonitor spec podMetricsEndpoints 0 interval": "5s"}),
    (
        "monitoring.labels",
        {"a": "b"},
        _MONITORED,
        {"PodMonitor metadata labels a": "b", "PrometheusRule metadata labels a": "b"},
    ),
    ("podLabels", {"a": "b"}, {}, {"template metadata labels a": "b"}),
    ("podAnnotations", {"a": "b"}, {}, {"template metadata annotations a": "b"}),
    ("nodeSelector", {"a": "b"}, {}, {"pod nodeSelector": {"a": "b"}}),
    (
        "tolerations",
        [{"key": "k"}],
        {"gpus": 1},
        {"pod tolerations 0 key": "nvidia.com/gpu", "pod tolerations 1 key": "k"},
    ),
    ("affinity", {"podAntiAffinity": {}}, {}, {"pod affinity": {"podAntiAffinity": {}}}),
    ("priorityClassName", "high", {}, {"pod priorityClassName": "high"}),
    ("runtimeClassName", "nvidia", {}, {"pod runtimeClassName": "nvidia"}),
    ("extraVolumes", [_MORE], {}, {"pod volumes 3": _MORE}),
    ("extraVolumeMounts", [{"name": "more", "mountPath": "/m"}], {"extraVolumes": [_MORE]}, {"mounts /m": _MORE}),
]


@pytest.mark.parametrize(("value", "given", "others", "expected"), CASES, ids=[case[0] for case in CASES])
def test_value_is_rendered(value: str, given: Any, others: Object, expected: dict[str, Any]) -> None:
    values = json.loads(json.dumps(others))
    *path, last = value.split(".")
    functools.reduce(lambda found, key: found.setdefault(key, {}), path, values)[last] = given
    stack = rendered(values)
    validate(*(each for each in stack.objects if each not in example("aws").objects))
    if "TRIDENT_AUTH_TOKEN_FILE" not in stack.environment and "TRIDENT_HTTP_SERVER_KEY" not in stack.environment:
        assert stack.settings.without_effect == ()
    assert {place: _at(stack, place) for place in expected} == expected


def _at(stack: Manifests, place: str) -> Any:
    """Return the value at a path that begins with the kind of an object or an attribute of Manifests."""
    first, *path = place.split()
    found = getattr(stack, first) if hasattr(stack, first) else next(iter(stack.of(first)), None)
    for key in path:
        found = dict(enumerate(found)).get(int(key)) if isinstance(found, list) else found[key]
    return found


def test_every_value_has_a_case() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {case[0] for case in CASES} == set(_leaves(defaults))


def _leaves(values: Object, prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        found += _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [prefix + name]
    return found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"models": {"repository": ""}}, "models.repository says where the models are"),
        ({"models": {"volume": {"claim": "c"}}}, "two places for the models"),
        ({"models": {"repository": "http://a"}}, "at '/models/repository'"),
        ({"image": {"tga": "1"}}, "'tga' not allowed"),
        ({"settings": {"HTTP_PORT": 1}}, "invalid propertyName 'HTTP_PORT'"),
        ({"image": {"repository": 'a"\nargs: [sh]'}}, "at '/image/repository'"),
        ({"autoscaling": {"kind": "hpa", "rule": "p99"}}, "needs autoscaling.kind keda"),
    ],
)
def test_wrong_value_is_refused(values: Object, message: str) -> None:
    finished = helm(values)
    assert finished.returncode != 0
    assert message in finished.stderr


def test_values_of_the_guide_render() -> None:
    (text,) = re.findall(r"```yaml\n(# values.yaml\n.*?)```", (ROOT / "docs" / "kubernetes.md").read_text(), re.DOTALL)
    stack = rendered(yaml.safe_load(text))
    validate(*stack.objects)
    assert stack.container["image"] == "registry.example.com/trident:gpu"


def test_changed_setting_is_a_rollout() -> None:
    name = "checksum/settings"
    before, after = (
        stack.template["metadata"]["annotations"][name]
        for stack in (example("aws"), rendered({"settings": {"TRIDENT_LOG_FORMAT": "default"}}))
    )
    assert before != after


def test_chart_has_the_version_of_the_server() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project
