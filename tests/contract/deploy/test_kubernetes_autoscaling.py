"""deploy/kubernetes: the autoscalers, their metric, and how Prometheus scrapes it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.lists import metric_rows
from tests.contract.deploy.external_tool import external_tool
from tests.contract.deploy.kubernetes_manifests import OVERLAYS, Manifests, manifests, validate

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
    command = [external_tool("promtool", "prometheus"), "test", "rules", str(file)]
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
