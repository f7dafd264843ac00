"""promtool tests the alert rules with the series of servers that really fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.contract.deploy.external_tool import external_tool
from tests.contract.deploy.failing_servers import failing_servers, scraped
from tests.contract.deploy.prometheus import MONITORING

# A scrape stands for a minute of the rules, the longest of which needs half an hour.
STEPS, INTERVAL_S = 42, 0.5
TOOL_LIMIT_S = 60
ERRORS = ("TridentErrors", "TridentManyErrors")
EXPECTED: dict[str, tuple[str, ...]] = {
    "late": ("TridentQueueSaturated", "TridentRequestsPending", "TridentSlow", "TridentSlower", "TridentSlowTail"),
    "failing": (*ERRORS, "TridentQueueSaturated", "TridentRequestsRejected", "TridentSlower"),
    "broken": (
        "TridentNotReady",
        "TridentModelLoadFailed",
        "TridentModelVersionUnavailable",
        "TridentModelFlapping",
    ),
    "idle": ("TridentNoTraffic",),
    "dead": ("TridentDown",),
    "thrashing": ("TridentMultiModelThrash",),
}
# This machine may have no GPU, whose memory would have to be full.
WITHOUT_FAILURE = {"TridentGpuMemory"}


@pytest.mark.slow
def test_each_alert_fires_for_a_server_that_fails_so_and_for_no_other(tmp_path: Path) -> None:
    promtool = external_tool("promtool", "prometheus")
    with failing_servers(tmp_path) as pages:
        series = scraped(pages, STEPS, INTERVAL_S)
    fired = {
        "expr": 'group by (alertname, release) (last_over_time(ALERTS{alertstate="firing"}[2h]))',
        "eval_time": f"{STEPS}m",
        "exp_samples": [
            {"labels": f'{{alertname="{alert}",release="{release}"}}', "value": 1}
            for release, alerts in EXPECTED.items()
            for alert in alerts
        ],
    }
    story = {"interval": "1m", "input_series": series, "promql_expr_test": [fired]}
    rules = {"rule_files": [str(MONITORING / "rules.yml")], "evaluation_interval": "1m", "tests": [story]}
    (tmp_path / "alerts_test.yml").write_text(json.dumps(rules))  # YAML, too
    command = [promtool, "test", "rules", str(tmp_path / "alerts_test.yml")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_alert_is_expected_of_some_server() -> None:
    groups = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert {alert for fired in EXPECTED.values() for alert in fired} == alerts - WITHOUT_FAILURE
