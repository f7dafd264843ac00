"""Builds `deploy/monitoring/dashboards/trident.json` from the rows of dashboard_panels.py.

    python -m deploy.monitoring.build_dashboard

The data source of the dashboard is a variable, so that the file can be imported anywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.monitoring.dashboard_panels import ROWS, Panel

DASHBOARD = Path(__file__).resolve().parent / "dashboards" / "trident.json"
# That of Grafana 9.5, which later versions read.
SCHEMA_VERSION = 38
COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_ANY_SERVER = "nv_pinned_memory_pool_total_bytes"
_ANY_MODEL = "nv_inference_request_success"
_OF_SERVER = 'namespace=~"$namespace",release=~"$release"'
# Each query is filtered by the variables before it.
_VARIABLES = (
    ("namespace", f"label_values({_ANY_SERVER}, namespace)"),
    ("release", f'label_values({_ANY_SERVER}{{namespace=~"$namespace"}}, release)'),
    ("model", f"label_values({_ANY_MODEL}{{{_OF_SERVER}}}, model)"),
    ("version", f'label_values({_ANY_MODEL}{{{_OF_SERVER},model=~"$model"}}, version)'),
)


def dashboard() -> dict[str, Any]:
    """The whole document for Grafana's provisioning."""
    return {
        "uid": "trident",
        "title": "Trident",
        "tags": ["trident"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source_variable(), *(_variable(name, query) for name, query in _VARIABLES)]},
        "panels": _panels(),
    }


def text() -> str:
    """The content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place})
        left, top, height = 0, top + 1, 0
        for panel in row:
            if left + panel.width > COLUMNS:
                left, top = 0, top + height
            height = 4 if panel.kind == "stat" else 8
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            left += panel.width
        top += height
    return panels


def _panel(panel: Panel) -> dict[str, Any]:
    drawing = {"stacking": {"mode": "normal"}, "fillOpacity": 20} if panel.stacked else {}
    table = panel.kind == "table"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": drawing}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
                "instant": table,
                "range": not table,
                "format": "table" if table else "time_series",
            }
            for number, (legend, expression) in enumerate(panel.queries)
        ],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


if __name__ == "__main__":
    DASHBOARD.parent.mkdir(exist_ok=True)
    DASHBOARD.write_text(text())
