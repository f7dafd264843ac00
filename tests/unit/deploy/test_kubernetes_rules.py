"""The alert rules in the form of the Prometheus operator."""

from __future__ import annotations

import yaml

from deploy.kubernetes.build_rules import PROMETHEUS_RULE, RULES, text


def test_rules_file_is_up_to_date() -> None:
    assert PROMETHEUS_RULE.read_text() == text(), "run: python -m deploy.kubernetes.build_rules"


def test_spec_contains_the_rules() -> None:
    rule = yaml.safe_load(PROMETHEUS_RULE.read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["spec"]["groups"]
