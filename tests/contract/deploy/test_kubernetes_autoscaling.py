"""deploy/kubernetes: the autoscalers, their metric, and how Prometheus scrapes it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.contract.deploy.kubernetes_manifests import OVERLAYS, Manifests, manifests, validate
from tests.project import ROOT
from trident.app.docs.metrics_page import metric_rows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifest_leaves_replicas_to_the_autoscaler(overlay: str) -> None:
    whole = manifests(f"overlays/{overlay}")
    assert "replicas" not in whole.one("Deployment")["spec"]
    autoscalers = whole.of("HorizontalPodAutoscaler", "ScaledObject")
    assert len(autoscalers) <= 1
    for each in autoscalers:
        target = each["spec"]["scaleTargetRef"]
        deployment = whole.one("Deployment")
        assert target == {
            "apiVersion": deployment["apiVersion"],
            "kind": deployment["kind"],
            "name": deployment["metadata"]["name"],
        }


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


def test_rules_are_those_of_the_monitoring_stack() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "monitoring" / "rules.yml").read_text())
    assert manifests("overlays/aws-hpa").one("PrometheusRule")["spec"] == rules
