"""Builds `parts/monitoring/rules.yaml`, the PrometheusRule, from `deploy/monitoring/rules.yml`.

    python -m deploy.kubernetes.build_rules

kustomize reads no files outside a kustomization's folder, so it needs a copy of the rules.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
RULES = _FOLDER.parent / "monitoring" / "rules.yml"
PROMETHEUS_RULE = _FOLDER / "parts" / "monitoring" / "rules.yaml"
_HEAD = """\
# Made from deploy/monitoring/rules.yml by `python -m deploy.kubernetes.build_rules`; do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: trident
  labels:
    app.kubernetes.io/name: trident
    app.kubernetes.io/instance: trident
spec:
"""
_BEGIN = "groups:\n"


def text() -> str:
    """The content of the file: the groups with their comments, indented by one level."""
    groups = _BEGIN + RULES.read_text().partition(_BEGIN)[2]
    return _HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


if __name__ == "__main__":
    PROMETHEUS_RULE.write_text(text())
