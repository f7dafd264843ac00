"""The console's routes: its files, pages of many models, and permissions for changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.access import AuthTokens, Scope
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.console import _FILES, CONSOLE_ROUTES, log_event
from trident.core.http.front_end import HttpOptions
from trident.core.http.routes import ROUTES
from trident.core.lifecycle.state import IndexEntry, ModelState, VersionOverview
from trident.core.observability.history import Activity


@pytest.fixture
def tokens(tmp_path: Path) -> AuthTokens:
    file = tmp_path / "tokens"
    file.write_text("a-token-of-this-server\n")
    file.chmod(0o600)
    return AuthTokens(str(file), Scope.ALL)


class ManyModels(FakeEngine):
    def overview(self, name: str = "") -> list[VersionOverview]:
        entries = [IndexEntry(name=f"m{i:05}", version=1, state=ModelState.READY) for i in range(10_000)]
        lines = [VersionOverview(entry=entry) for entry in entries]
        lines[77] = replace(lines[77], activity=Activity(requests=60, p99_us=9.0, executions=30, items=60))
        return lines


def client(engine: FakeEngine, **options: Any) -> Client:
    return Client(V2Application(engine, HttpOptions(**options), ThreadBridge(), (*ROUTES, *CONSOLE_ROUTES)))


def asked(path: str, engine: FakeEngine | None = None) -> TestResponse:
    return client(engine or FakeEngine()).get(path)


def test_the_server_sorts_searches_and_pages_the_models() -> None:
    engine = ManyModels()
    page = asked("/console/api/models?sort=p99_us-down&limit=2", engine).get_json()
    assert [row["id"] for row in page["rows"]] == ["m00077/1", "m00000/1"]
    assert (page["total"], page["requests_per_s"]) == (10_000, 1.0)
    assert page["rows"][0]["batch_size"] == 2.0
    page = asked("/console/api/models?search=M0999&offset=3&limit=500", engine).get_json()
    assert (page["matching"], len(page["rows"]), page["rows"][0]["name"]) == (10, 7, "m09993")
    assert asked("/console/api/models?sort=reasons", engine).status_code == 400
    assert asked("/console/api/models?limit=-1", engine).status_code == 400


@pytest.mark.parametrize(
    ("p99_us", "slowest"),
    [([9.0], ""), ([5.0, 9.0, 49.0], ""), ([5.0, 9.0, 90.0], "m2/1"), ([2e6], "m0/1"), ([9e5, 2e6], "m1/1")],
)
def test_slowest_model_is_named_if_others_are_faster(p99_us: list[float], slowest: str) -> None:
    class Models(FakeEngine):
        def overview(self, name: str = "") -> list[VersionOverview]:
            return [
                VersionOverview(
                    entry=IndexEntry(name=f"m{i}", version=1, state=ModelState.READY),
                    activity=Activity(requests=60, p99_us=each),
                )
                for i, each in enumerate(p99_us)
            ]

    assert asked("/console/api/models", Models()).get_json()["slowest"] == slowest


def test_endless_execution_is_reported() -> None:
    class Stuck(FakeEngine):
        def overview(self, name: str = "") -> list[VersionOverview]:
            entries = [IndexEntry(name=name, version=1, state=ModelState.READY) for name in ("quick", "stuck")]
            times = (9_900_000_000, 45_000_000_000)
            return [
                VersionOverview(entry=each, oldest_execution_ns=ns, queued=3)
                for each, ns in zip(entries, times, strict=True)
            ]

        def repository_index(self, ready_only: bool) -> list[IndexEntry]:
            return [line.entry for line in self.overview()]

    (row,) = asked("/console/api/models", Stuck()).get_json()["running"]
    assert (row["id"], row["running_s"], row["queued"]) == ("stuck/1", 45.0, 3)
    quick, stuck = asked("/console/api/index", Stuck()).get_json()
    assert ("running_s" in quick, stuck["running_s"]) == (False, 45.0)


@pytest.mark.parametrize(
    "line",
    [
        b'{"level":"ERROR","message":"\\ud800"}',
        b'{"level":"ERROR","message":"caf\xe9"}',
        b'{"level":"ERROR","message":NaN}',
        b'{"level":"ERROR","message":1}',
        b'{"level":["INFO"],"message":"x"}',
        b'{"message":"x"}',
        b"[1]",
        b"ends in the mid",
    ],
)
def test_any_line_of_the_log_is_an_event(line: bytes) -> None:
    assert log_event(line) == {"level": "INFO", "message": line.decode("utf-8", "replace")}
    assert log_event(b'{"level":"ERROR","message":"x","n":1}') == {"level": "ERROR", "message": "x", "n": 1}


def test_console_files_are_public_and_other_paths_are_not_served() -> None:
    page = asked("/console")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert asked("/console/").headers["Location"] == "../console"
    for name in ("../routes.py", "..%2Froutes.py", "%2Fetc%2Fpasswd", "vendor/uPlot.LICENSE.txt"):
        assert asked(f"/console/page/{name}").status_code == 404
    script = client(FakeEngine()).get("/console/page/app.js", headers={"Accept-Encoding": "gzip"})
    assert (script.mimetype, script.headers["Content-Encoding"]) == ("text/javascript", "gzip")
    again = client(FakeEngine()).get("/console/page/app.js", headers={"If-None-Match": script.headers["ETag"]})
    assert again.status_code == 304


def test_root_redirects_browsers_to_the_console_or_names_its_option(tokens: AuthTokens) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    # Without a token: the page itself is open, too.
    root = client(FakeEngine(), console=True, tokens=tokens).get("/", headers=browser)
    assert (root.status_code, root.headers["Location"]) == (302, "console")
    without = client(FakeEngine(), tokens=tokens)
    assert without.get("/", headers=browser).status_code == 404
    assert "--console=true" in json.loads(without.get("/", headers=browser).data)["hint"]
    assert "/v2/docs/openapi.json" in json.loads(client(FakeEngine(), console=True).get("/").data)["hint"]
    assert without.post("/", json={"inputs": "x"}).status_code == 401


def test_scripts_are_small_and_load_nothing_external() -> None:
    own = {name: text.decode() for name, text in _FILES.items() if not name.startswith("vendor/")}
    assert not [name for name, text in own.items() if "://" in text.replace("http://www.w3.org", "")]
    assert not [name for name, text in own.items() if "innerHTML" in text or "<script>" in text]


def test_changes_need_a_token_and_the_header_of_the_page(tokens: AuthTokens) -> None:
    engine = FakeEngine()
    guarded = client(engine, tokens=tokens)
    bearer = {"Authorization": "Bearer a-token-of-this-server"}
    body = json.dumps({"name": "simple"})
    assert guarded.get("/console").status_code == 200
    assert guarded.get("/console/api/models").status_code == 401
    assert guarded.get("/console/api/models", headers=bearer).status_code == 200
    for headers, status in (({"Trident-Console": "1"}, 401), (bearer, 400), ({**bearer, "Trident-Console": "1"}, 200)):
        assert guarded.post("/console/api/unload", data=body, headers=headers).status_code == status
    assert [call[0] for call in engine.calls] == ["unload"]


def test_console_routes_are_not_documented() -> None:
    document = asked("/v2/docs/openapi.json").get_json()
    assert "/v2/models/stats" in document["paths"]
    assert not [path for path in document["paths"] if "console" in path]


@pytest.mark.parametrize("path", ["/console", "/console/api/models", "/console/page/app.js"])
def test_console_is_disabled_by_default(path: str) -> None:
    plain = Client(V2Application(FakeEngine(), HttpOptions(), ThreadBridge()))
    assert plain.get(path).status_code == 404
