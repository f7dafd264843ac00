"""Checks of the dashboard and the alert rules that need no server."""

from __future__ import annotations

import json
import re
import runpy
from itertools import combinations
from typing import Any

import pytest
import yaml

from docs.lists import metric_rows
from tests.project import ROOT

MONITORING = ROOT / "deploy" / "monitoring"
RULES = yaml.safe_load((MONITORING / "rules.yml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((MONITORING / "dashboards" / "trident.json").read_text())
PANELS = DASHBOARD["panels"]
COLUMNS = 24
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
METRIC = re.compile(r"\b(?:nv|flask|trident)_\w+")
VARIABLE = re.compile(r"\$(\w+)")
_GRAFANAS_OWN = {"__rate_interval"}


def test_the_dashboard_works_with_any_data_source() -> None:
    assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD))) == {"${datasource}", "trident"}


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_dashboard_variables_are_defined() -> None:
    defined = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert defined == {"datasource", "namespace", "release", "model", "version"}
    used = {name for expression in EXPRESSIONS for name in VARIABLE.findall(expression)} - _GRAFANAS_OWN
    assert used == defined - {"datasource"}


def test_queries_name_metrics_of_the_server() -> None:
    types = {row.name: row.type for row in metric_rows()}
    known = set(types) - {name for name, kind in types.items() if kind == "histogram"}
    known |= {f"{name}_{part}" for name, kind in types.items() if kind == "histogram" for part in _PARTS}
    queries = EXPRESSIONS + [alert["expr"] for alert in ALERTS]
    assert {name for query in queries for name in METRIC.findall(query)} <= known


_PARTS = ("bucket", "sum", "count")


def test_the_operators_rules_are_the_same() -> None:
    rule = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "parts" / "monitoring" / "rules.yaml").read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"] == RULES


def test_alerts_describe_the_event_and_the_cure() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
    for alert in ALERTS:
        assert alert["labels"]["severity"] in {"page", "ticket", "info"}
        assert set(alert["annotations"]) == {"summary", "action"}


def test_every_alert_fires_in_a_test_of_the_rules() -> None:
    stories = yaml.safe_load((MONITORING / "rules_test.yml").read_text())["tests"]
    samples = [sample for story in stories for test in story["promql_expr_test"] for sample in test["exp_samples"]]
    firing = {re.search(r'alertname="(\w+)", severity="(\w+)"', sample["labels"]).groups() for sample in samples}  # type: ignore[union-attr]
    assert firing == {(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS}


# --- the images that the compose file builds and runs beside the server


COMPOSE = ROOT / "deploy" / "compose"
_BASE = re.compile(r"docker\.io/library/python:\S+")


def test_emulators_are_those_of_the_tests_on_the_base_of_the_server() -> None:
    pins = re.findall(r'"([a-z0-9-]+)(?:\[[^]]*\])?==([\w.]+)"', (COMPOSE / "emulators" / "Dockerfile").read_text())
    locked = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().split() if "==" in line)
    assert {name for name, _ in pins} == {"moto", "flask", "flask-cors", "gcp-storage-emulator", "boto3"}
    assert {name: version for name, version in pins if locked[name] != version} == {}
    bases = [
        _BASE.findall(path.read_text())
        for path in (COMPOSE / "emulators" / "Dockerfile", ROOT / "docker" / "Dockerfile")
    ]
    assert bases[0] == bases[1]


@pytest.mark.parametrize(
    "arguments", [[], ["s3", "http://x", "b/p"], ["sagemaker", "http://x"], ["sagemaker", "http://x", "no"]]
)
def test_seed_prints_its_usage(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["seed.py", *arguments])
    with pytest.raises(SystemExit, match=r"python seed.py s3 ENDPOINT"):
        runpy.run_path(str(COMPOSE / "seed.py"), run_name="__main__")
