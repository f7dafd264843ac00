"""The routes of a container that the redirect header and an invoke route prefix reach.

Source: docs/spec/vertex.md sections A3 (invoke), B3, D points 9 and 11.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import add_scaled
from tests.contract.servers.ports import HOST
from tests.contract.vertex.vertex_container import HEALTH, LIMIT_S, PREDICT, Answer, VertexContainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

INSTANCES = {"instances": [[1, 2, 3, 4]]}
V2 = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
CONTROL = "v2/repository/models/cat/unload"
KEY = "x-control-key"
# Routes that change the server or show how it runs.
HIDDEN = [
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/cat/load"),
    ("POST", "/v2/repository/models/cat/unload"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("POST", "/v2/cudasharedmemory/region/x/register"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/trace/setting"),
    ("GET", "/v2/models/cat/trace/setting"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/logging"),
]
SHOWN = [
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models/cat"),
    ("GET", "/v2/models/cat/versions/1"),
    ("GET", "/v2/models/cat/ready"),
    ("GET", "/v2/models/cat/config"),
    ("GET", "/v2/models/cat/stats"),
    ("GET", "/v2/models/stats"),
    ("GET", "/metrics"),
    ("POST", "/v2/models/cat/infer"),
]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[VertexContainer]:
    """A container whose model a request could unload. The model must still be loaded at the end."""
    add_scaled(folder / "models", "cat", 3)
    arguments = ("--model-control-mode=explicit", "--load-model=*", *arguments)
    with VertexContainer(folder, folder / "models", *arguments) as container:
        yield container
        if container.process.poll() is None:
            assert_serves(container)


def assert_serves(container: VertexContainer) -> None:
    assert container.predictions([[1, 2, 3, 4]]) == [[3, 6, 9, 12]]


@pytest.fixture(scope="module")
def container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    """A container with restricted groups."""
    restricted = f"--http-restricted-api=model-repository,shared-memory,logging:{KEY}=secret"
    with serving(tmp_path_factory.mktemp("container"), restricted) as made:
        yield made


@pytest.fixture(scope="module")
def plain(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    with serving(tmp_path_factory.mktemp("plain")) as made:
        yield made


def raw(container: VertexContainer, *lines: bytes, body: bytes = b"") -> bytes:
    """Send a request of these header lines. Returns the status line of the answer."""
    head = [b"POST " + PREDICT.encode() + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body)]
    with socket.create_connection((HOST, container.port), LIMIT_S) as connection:
        connection.sendall(b"\r\n".join([*head, b"Connection: close", *lines, b"", b""]) + body)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer.partition(b"\r\n")[0]


# --- the redirect header


def test_redirect_reaches_routes_that_only_read(plain: VertexContainer) -> None:
    def document(target: str, body: bytes | None = None) -> object:
        answer = plain.redirected(target, body)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        return answer.document

    assert document("v2/models/cat")["versions"] == ["1"]  # type: ignore[index]
    assert document("v2/models/cat/config")["max_batch_size"] == 8  # type: ignore[index]
    assert document("v2/models/cat/versions/1/stats")["model_stats"][0]["name"] == "cat"  # type: ignore[index]
    assert document("v2/repository/index", b'{"ready":true}') == [{"name": "cat", "version": "1", "state": "READY"}]
    assert document("v2/systemsharedmemory/status") == []
    assert document("v2/models/cat/infer", V2)["outputs"][0]["data"] == [3, 6, 9, 12]  # type: ignore[index]
    for target in ("v2/health/live", "v2/health/ready", "v2/models/cat/ready"):
        assert plain.redirected(target)[::2] == (200, b"")
    assert plain.redirected("v2/models/dog").status == 404


def test_metrics_are_those_of_the_metrics_port(plain: VertexContainer) -> None:
    assert_serves(plain)
    pages = [
        plain.redirected("metrics"),
        plain.ask("GET", "/metrics"),
        plain.ask("GET", "/metrics", port=plain.metrics_port),
    ]
    for page in pages:
        assert page.status == 200
        assert page.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert b'nv_inference_count{model="cat",version="1"}' in page.body


@pytest.mark.parametrize("key", [{}, {"X_Control_Key": "secret"}])
def test_redirect_reaches_no_route_that_changes_the_server(container: VertexContainer, key: dict[str, str]) -> None:
    for target in (
        CONTROL,
        "v2/repository/models/cat/load",
        "v2/systemsharedmemory/region/x/register",
        "v2/systemsharedmemory/unregister",
        "v2/cudasharedmemory/region/x/unregister",
    ):
        answer = container.redirected(target, b"{}", **key)
        assert answer.status == 403
        assert target in answer.error
    assert_serves(container)


def test_redirect_to_a_restricted_group_needs_its_key(container: VertexContainer) -> None:
    answer = container.redirected("v2/repository/index")
    assert (answer.status, KEY in answer.error) == (403, True)
    assert container.redirected("v2/repository/index", X_Control_Key="wrong").status == 403
    assert container.redirected("v2/repository/index", X_Control_Key="secret").status == 200
    assert container.redirected("v2/models/cat").status == 200


@pytest.mark.parametrize("target", ["v2/models/cat/generates", "v2/trace/setting", "v2/logging", "v1", "/v2"])
def test_other_targets_are_refused(plain: VertexContainer, target: str) -> None:
    answer = plain.redirected(target, b"{}")
    assert (answer.status, target in answer.error) == (400, True)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"/",
        b"v2/repository/models/cat/%75nload",
        b"v2/repository%2Fmodels/cat/unload",
        b"v2%2frepository%2fmodels%2fcat%2funload",
        b"v2/models/%2e%2e/repository/models/cat/unload",
        b"v2/models/../repository/models/cat/unload",
        b"v2/./repository/models/cat/unload",
        b"v2//repository/models/cat/unload",
        b"v2/repository/models/cat/unload/",
        b"v2/repository/models/cat/unload?a=b",
        b"v2/repository/models/cat/unload#a",
        b"v2/repository/models/cat/unload\tx",
        b"http://127.0.0.1/v2/repository/models/cat/unload",
        b"v2\\repository\\models\\cat\\unload",
        b"v2/repository/models/cat/unloa\xe4",
        b"v2/repository/models/cat/unload\xc2\xa0",
    ],
)
def test_no_spelling_of_a_target_reaches_a_control_route(plain: VertexContainer, value: bytes) -> None:
    assert raw(plain, b"X-Vertex-Ai-Triton-Redirect: " + value, body=b"{}").split()[1] == b"400"
    assert_serves(plain)


@pytest.mark.parametrize(
    "lines",
    [
        [b"X-Vertex-Ai-Triton-Redirect: v2", b"X-Vertex-Ai-Triton-Redirect: " + CONTROL.encode()],
        [b"X-Vertex-Ai-Triton-Redirect: " + CONTROL.encode(), b"x-vertex-ai-triton-redirect: v2"],
        [b"X-Vertex-Ai-Triton-Redirect: v2/models/cat", b"X-Vertex-Ai-Triton-Redirect: v2/models/cat"],
        [b"X-Vertex-Ai-Triton-Redirect: v2", b"X_Vertex_Ai_Triton_Redirect: " + CONTROL.encode()],
    ],
)
def test_repeated_redirect_header_is_refused(plain: VertexContainer, lines: list[bytes]) -> None:
    status = raw(plain, *lines, body=b"{}").split()[1]
    # A name with underscores is another header.
    assert status == b"400" or (b"X_Vertex" in lines[1] and status == b"200")
    assert_serves(plain)


def test_only_a_post_is_redirected(plain: VertexContainer) -> None:
    for method in ("GET", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"):
        for target in ("v2", "metrics", CONTROL):
            answer = plain.ask(method, PREDICT, X_Vertex_Ai_Triton_Redirect=target)
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")


# --- paths of an invoke route prefix


def statuses(container: VertexContainer, requests: list[tuple[str, str]]) -> set[int]:
    return {ask(container, method, path).status for method, path in requests}


def ask(container: VertexContainer, method: str, path: str, **headers: str) -> Answer:
    body = None if method == "GET" else V2 if "infer" in path else b"{}"
    return container.ask(method, path, body, **headers)


def test_routes_that_read_and_infer_are_public_by_default(plain: VertexContainer) -> None:
    assert statuses(plain, SHOWN) == {200}
    assert statuses(plain, HIDDEN) == {404}
    assert_serves(plain)


def test_public_routes_may_be_none(tmp_path: Path) -> None:
    with serving(tmp_path, "--public-routes=none") as container:
        assert statuses(container, SHOWN + HIDDEN) == {404}
        assert "(none)" in ask(container, "GET", "/v2").error
        assert container.health_status() == 200
        assert container.redirected("v2/models/cat").status == 200


def test_all_routes_may_be_public(tmp_path: Path) -> None:
    groups = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging,metrics"
    restricted = f"--http-restricted-api=model-repository:{KEY}=secret"
    with serving(tmp_path, f"--public-routes={groups}", restricted) as container:
        assert statuses(container, SHOWN) == {200}
        assert 404 not in statuses(container, [(m, p) for m, p in HIDDEN if "region" not in p])
        path = f"/{CONTROL}"
        assert ask(container, "POST", path).status == 403
        assert_serves(container)
        assert ask(container, "POST", path, X_Control_Key="secret").status == 200
        # The redirect header still does not reach it.
        assert container.redirected(CONTROL, X_Control_Key="secret").status == 403
        assert container.health_status() == 200  # the model can be loaded again through this port
        assert ask(container, "POST", "/v2/repository/models/cat/load", X_Control_Key="secret").status == 200


@pytest.mark.parametrize("path", ["/", "//v2", "/%76%32", "/v2/../v2", f"{PREDICT}/"])
def test_unknown_route_lists_the_routes(plain: VertexContainer, path: str) -> None:
    for method in ("GET", "POST"):
        answer = plain.ask(method, path, b"{}")
        assert answer.status == 404
        assert f"GET {HEALTH}, POST {PREDICT}" in answer.error


def test_platforms_routes_answer_one_method(plain: VertexContainer) -> None:
    for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = plain.ask(method, PREDICT)
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    for method in ("POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = plain.ask(method, HEALTH)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")
