"""Every query of dashboard and rules, with a real Prometheus that scrapes servers under load."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.contract.deploy.external_tool import external_tool
from tests.contract.deploy.monitored_site import monitored_servers
from tests.contract.deploy.prometheus import MONITORING, Prometheus, finite, shipped_config

DASHBOARD = json.loads((MONITORING / "dashboards" / "trident.json").read_text())
ALERTS = [rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]]
# Grafana's default values of its variables.
GRAFANA = {"$__rate_interval": "30s", "$namespace": ".*", "$release": ".*", "$model": ".*", "$version": ".*"}
SELECTOR = re.compile(r"\b(?:up|(?:nv|flask|trident)_\w+)(?:\{[^}]*\})?")
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")
# The load on the servers of this test makes these alerts true.
ALWAYS_TRUE = ["TridentModelLoadFailed", "TridentModelVersionUnavailable", "TridentNotReady"]
TOOL_LIMIT_S = 300


@dataclass(frozen=True)
class Query:
    where: str
    expression: str


def filled_in(expression: str) -> str:
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def selectors(expression: str) -> list[str]:
    """The series selectors of an expression."""
    return sorted(set(SELECTOR.findall(expression)))


PANEL_QUERIES = [
    Query(f"{panel['id']} {panel['title']}, {target['refId']}", filled_in(target["expr"]))
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", [])
]
RULE_SELECTORS = [
    Query(f"{alert['alert']}: {selector[:60]}", selector) for alert in ALERTS for selector in selectors(alert["expr"])
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    external_tool("prometheus", "prometheus")
    folder = tmp_path_factory.mktemp("monitoring")
    with monitored_servers(folder) as addresses, Prometheus(folder, shipped_config(addresses)) as running:
        running.wait_for("up == 1", lambda result: len(result) == len(addresses))
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("query", PANEL_QUERIES, ids=lambda query: query.where)
def test_query_of_the_dashboard_has_an_answer(query: Query, prometheus: Prometheus) -> None:
    prometheus.wait_for(query.expression, finite)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable",
    [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"],
    ids=lambda each: each["name"],
)
def test_variable_of_the_dashboard_has_values(variable: dict[str, dict[str, str]], prometheus: Prometheus) -> None:
    parts = LABEL_VALUES.fullmatch(filled_in(variable["query"]["query"]))
    assert parts is not None
    series, label = parts.groups()
    assert label == variable["name"]
    prometheus.wait_for(series, lambda result: all(each["metric"].get(label) for each in result) and result)


@pytest.mark.slow
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_rule_is_a_valid_query(alert: dict[str, str], prometheus: Prometheus) -> None:
    prometheus.query(alert["expr"])


@pytest.mark.slow
@pytest.mark.parametrize("query", RULE_SELECTORS, ids=lambda query: query.where)
def test_series_of_a_rule_exist(query: Query, prometheus: Prometheus) -> None:
    prometheus.wait_for(query.expression, finite)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALWAYS_TRUE)
def test_rule_is_true_under_this_load(name: str, prometheus: Prometheus) -> None:
    (expression,) = [alert["expr"] for alert in ALERTS if alert["alert"] == name]
    prometheus.wait_for(expression, finite)


@pytest.mark.slow
def test_missing_series_and_bad_queries_are_found(prometheus: Prometheus) -> None:
    """Otherwise the tests above would prove nothing."""
    assert not finite(prometheus.query("nv_inference_load_ratio_bucket"))
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.query("sum(rate(nv_inference_count[5m])")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "--lint-fatal", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    command = [external_tool("promtool", "prometheus"), *arguments]
    finished = subprocess.run(
        command, cwd=MONITORING, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
