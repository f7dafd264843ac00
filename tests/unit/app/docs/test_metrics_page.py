from __future__ import annotations

import re
from dataclasses import replace

from werkzeug.test import Client

from tests.project import ROOT, pure_python_only
from tests.unit.fake_engine import FakeEngine
from trident.app.docs.metrics_page import MODEL, NOTES, families_of, label_names, metric_rows, metrics_page
from trident.core.frontend.bridge import ThreadBridge
from trident.core.grpc.call import RefusedCall
from trident.core.grpc.front_end import ResponseCounts
from trident.core.grpc.headers import Method
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.observability.metrics_report import FIGURES

PAGE = ROOT / "docs" / "metrics.md"
# The optional labels, which the page describes once for all metrics of models.
OF_SOME_MODELS = {"gpu_uuid", "namespace", "_team"}


def test_the_page_is_generated_from_the_metrics() -> None:
    assert PAGE.read_text() == metrics_page(), "run: python -m trident.app.docs.metrics_page > docs/metrics.md"


def test_the_page_has_every_metric_and_figure_once() -> None:
    page, _, log = metrics_page().partition("## Metrics in the log")
    names = re.findall(r"^\* `(\w+)(?:\{[\w,]+\})?`, \w+: .+\.$", page, re.MULTILINE)
    assert sorted(names) == sorted({row.name for row in metric_rows()})
    assert re.findall(r"^\* `(\w+)`: .+$", log, re.MULTILINE) == list(FIGURES)


def test_every_note_belongs_to_a_metric() -> None:
    assert set(NOTES) <= {row.name for row in metric_rows()}


def test_the_text_names_the_optional_labels() -> None:
    everything = replace(MODEL, gpu_uuid="GPU-0", namespace="shop", tags={"team": "vision"})
    rows = {row.name: row for row in metric_rows()}
    of_models = [
        family for family in families_of(everything) if family.name.startswith("nv_") and "model" in label_names(family)
    ]
    assert of_models
    for family in of_models:
        one_series = family.type in ("histogram", "summary")
        added = set(label_names(family)) - set(rows[family.name].labels)
        assert added == (OF_SOME_MODELS - {"gpu_uuid"} if one_series else OF_SOME_MODELS)


def test_the_http_metrics_are_those_of_the_application() -> None:
    application = V2Application(FakeEngine(), HttpOptions(), ThreadBridge())
    client = Client(application)
    client.get("/v2/health/live")
    client.get("/none")
    shown = {}
    for family in application.request_metrics.collect():
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown[name] = (family.type, labels)
    documented = {
        row.name: (row.type, set(row.labels))
        for row in metric_rows()
        if row.name.startswith(("flask_", "trident_http_"))
    }
    # No view raises an exception, so this family has no series; its labels are those of the requests.
    assert shown.pop("flask_http_request_exceptions_total") == ("counter", set())
    assert documented.pop("flask_http_request_exceptions_total") == documented["flask_http_request_total"]
    assert shown == documented


@pure_python_only
def test_the_grpc_metric_is_that_of_the_calls() -> None:
    (documented,) = (row for row in metric_rows() if row.name.startswith("trident_grpc_"))
    method = Method("service", "Name", "", RefusedCall)
    # No call ends here, so no hub is needed.
    counts = ResponseCounts([method], deadlines=None)  # type: ignore[arg-type]
    method.ended[0] = 1
    counts.expire()
    (family,) = counts.counter.collect()
    assert (f"{family.name}_total", family.type, family.documentation) == (
        documented.name,
        documented.type,
        documented.meaning,
    )
    assert label_names(family) == documented.labels
