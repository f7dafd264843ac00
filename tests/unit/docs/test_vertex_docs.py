"""docs/vertex.md: its tables of variables, parameters and redirect targets agree with the code."""

from __future__ import annotations

import re
from dataclasses import fields

from tests.project import ROOT
from tests.unit.adapters.vertex.vertex_bench import VertexBench
from tests.unit.docs.test_troubleshooting import rows
from trident.adapters.vertex import platform as variables
from trident.adapters.vertex.platform import server_options, split_groups
from trident.adapters.vertex.predict import Target
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS
from trident.core.frontend.access import GROUPS

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
