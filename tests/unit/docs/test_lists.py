"""The complete lists of the documents, which are made from the source, and the tables of docs/vertex.md."""

from __future__ import annotations

import re
from dataclasses import fields, replace

from werkzeug.test import Client

from docs.lists import (
    DOCS,
    MODEL,
    NOTES,
    every_setting,
    families_of,
    label_names,
    metric_rows,
    pages,
    with_every_metric,
)
from tests.project import ROOT, pure_python_only
from tests.unit.adapters.vertex.vertex_bench import VertexBench
from tests.unit.docs.test_troubleshooting import rows
from tests.unit.fake_engine import FakeEngine
from trident.adapters.vertex import platform as variables
from trident.adapters.vertex.platform import server_options, split_groups
from trident.adapters.vertex.predict import Target
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS
from trident.core.frontend.access import GROUPS
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
    assert "* `--http-port=<integer>`, `TRIDENT_HTTP_PORT` (8000): The HTTP port.\n" in every_setting()
    assert "\n* `CUDA_VISIBLE_DEVICES` (all): " in every_setting()
    metrics = with_every_metric((DOCS / "metrics.md").read_text())
    assert "* `nv_inference_count{model,version}`, counter: Number of inferences performed; over" in metrics
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
def test_the_grpc_metrics_are_those_of_the_calls() -> None:
    documented = [row for row in metric_rows() if row.name.startswith("trident_grpc_")]
    method = Method("service", "Name", "", RefusedCall)
    # No call ends here, so no hub is needed.
    counts = ResponseCounts([method], deadlines=None)  # type: ignore[arg-type]
    method.ended[0] = 1
    counts.expire()
    counts.errors.labels("Name", "m", "NOT_FOUND").inc()
    for family, row in zip(counts.collect(), documented, strict=True):
        assert (f"{family.name}_total", family.type, family.documentation) == (row.name, row.type, row.meaning)
        assert label_names(family) == row.labels


# --- docs/vertex.md: its tables of variables, parameters and redirect targets agree with the code


DOCUMENT = (ROOT / "docs" / "vertex.md").read_text()
# The commands that deploy and emulate have other options than the server.
SERVER = re.sub(r"^## (?:Deploy|On a laptop)\n.*?(?=^## )", "", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
SERVER = SERVER[SERVER.index("\n## ") :]
PLAIN = SERVER.replace("`", "")


def test_the_page_documents_exactly_the_variables_that_the_adapter_reads() -> None:
    documented = {name for row in rows(PLAIN, "variable") for name in row[0].split(", ")}
    read = {text for name, text in vars(variables).items() if name.isupper() and str(text).startswith("AIP_")}
    assert documented == read | set(variables._OLD_NAMES.values())


def test_the_page_names_the_option_that_each_variable_sets() -> None:
    given = {
        each.source: each.flag
        for each in server_options({"AIP_HTTP_PORT": "1", "AIP_STORAGE_URI": "x"}, on_platform=False)
    }
    documented = {row[0]: row[2] for row in rows(PLAIN, "variable")}
    assert all(documented[name].startswith(f"--{flag}") for name, flag in given.items())
    assert len(given) == 2


def test_the_page_gives_the_defaults() -> None:
    predict, health, _ = variables.read_routes({"AIP_ENDPOINT_ID": "E", "AIP_DEPLOYED_MODEL_ID": "D"})
    documented = {row[0]: row[1] for row in rows(PLAIN, "variable")}
    assert (documented["AIP_PREDICT_ROUTE"], documented["AIP_HEALTH_ROUTE"]) == (predict, health)
    given = {f"--{each.flag}": each.text for each in server_options({}, on_platform=True)}
    assert {row[0]: row[1] for row in rows(PLAIN, "setting")} == given


def test_every_flag_and_parameter_on_the_page_exists() -> None:
    flags = {each.flag for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS)}
    assert {name for name in re.findall(r"--([a-z][a-z-]+)", SERVER) if name not in flags} == set()
    assert {row[0] for row in rows(PLAIN, "member of parameters")} == {field.name for field in fields(Target)}


def test_the_page_names_the_public_and_the_hidden_groups_of_routes() -> None:
    section = DOCUMENT[DOCUMENT.index("## Invoke mode") : DOCUMENT.index("## On a laptop")]
    public = split_groups(SERVER_OPTIONS["public_routes"].default)
    assert all(f"`{group}`" in section for group in (*public, *GROUPS))
    hidden = re.findall(r"\(`(.+?)`\) answers only if", section)
    assert set(hidden[0].split("`, `")) == set(GROUPS) - set(public)


def test_the_redirect_header_reaches_the_targets_on_the_page() -> None:
    lines = [line for line in SERVER.splitlines() if line.startswith(("| `metrics`", "| `v2`", "| `v2/repository"))]
    named = re.findall(r"`([^`]+)`", "".join(lines))
    refused = {
        "v2/repository/models/simple/load": 403,
        "v2/systemsharedmemory/region/x/register": 403,
        "v2/anything": 400,
    }
    expected = {**dict.fromkeys(named, 200), **refused}
    assert {target: VertexBench().redirect(target).status_code for target in expected} == expected
