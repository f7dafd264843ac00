"""The lists of the documents that are made from the source, and whether they are complete."""

from __future__ import annotations

from dataclasses import replace

from werkzeug.test import Client

from docs.lists import MODEL, NOTES, families_of, label_names, metric_rows, pages
from tests.project import pure_python_only
from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.grpc.call import RefusedCall
from trident.core.grpc.front_end import ResponseCounts
from trident.core.grpc.headers import Method
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions

# The optional labels, which the page describes once for all metrics of models.
OF_SOME_MODELS = {"gpu_uuid", "namespace", "_team"}


def test_the_pages_have_the_lists_of_the_source() -> None:
    assert [page.name for page, text in pages().items() if page.read_text() != text] == [], "run: python -m docs.lists"
    (settings,) = (text for page, text in pages().items() if page.name == "settings.md")
    assert "* `--http-port=<integer>`, `TRIDENT_HTTP_PORT` (8000): The HTTP port.\n" in settings
    assert "\n* `CUDA_VISIBLE_DEVICES` (all): " in settings
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
    found = (f"{family.name}_total", family.type, family.documentation)
    assert found == (documented.name, documented.type, documented.meaning)
    assert label_names(family) == documented.labels
