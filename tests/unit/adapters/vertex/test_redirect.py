"""The routes that the redirect header reaches, and those that it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.adapters.vertex.vertex_bench import HEALTH, PREDICT, V2, VertexBench
from trident.adapters.vertex.endpoint import SHARED_ENDPOINT_BYTES
from trident.core.frontend.access import GROUPS, parse_restricted
from trident.core.http.front_end import HttpOptions

PERMITTED = [
    ("metrics", "text/plain"),
    ("v2", "application/json"),
    ("v2/health/live", "text/plain"),
    ("v2/health/ready", "text/plain"),
    ("v2/models/stats", "application/json"),
    ("v2/models/simple", "application/json"),
    ("v2/models/simple/versions/3", "application/json"),
    ("v2/models/simple/ready", "text/plain"),
    ("v2/models/simple/versions/3/ready", "text/plain"),
    ("v2/models/simple/config", "application/json"),
    ("v2/models/simple/versions/3/config", "application/json"),
    ("v2/models/simple/stats", "application/json"),
    ("v2/models/simple/versions/3/stats", "application/json"),
    ("v2/models/a%2Fb", "application/json"),
    ("v2/repository/index", "application/json"),
    ("v2/repository/r/index", "application/json"),
    ("v2/systemsharedmemory/status", "application/json"),
    ("v2/cudasharedmemory/status", "application/json"),
]
FORBIDDEN = [
    "v2/repository/models/simple/load",
    "v2/repository/models/simple/unload",
    "v2/repository/r/models/simple/load",
    "v2/repository/r/models/simple/unload",
    "v2/systemsharedmemory/region/x/register",
    "v2/systemsharedmemory/region/x/unregister",
    "v2/systemsharedmemory/unregister",
    "v2/cudasharedmemory/region/x/register",
    "v2/cudasharedmemory/region/x/unregister",
    "v2/cudasharedmemory/unregister",
]
UNKNOWN = [
    "",
    "/",
    "/v2",
    "//v2",
    "v2/",
    "v2//models/simple",
    "V2",
    "v2?a=b",
    "v2#a",
    "v2 ",
    "v2/models/simple/",
    "v2/models/simple/generates",
    "v2/models/simple/versions/x",
    "v2/trace/setting",
    "v2/models/simple/trace/setting",
    "v2/logging",
    "v2/nothing",
    "metrics/x",
    "metrics?x",
    "v2,v2",
    "http://other/v2",
    "v2\\health\\live",
    "v2/h\xe9alth/live",
    HEALTH[1:],
    PREDICT[1:],
]
HIDDEN = [
    "v2/repository/models/simple/%75nload",
    "v2/repository/models/simple/unload%00",
    "v2/repository%2fmodels/simple/unload",
    "v2%2Frepository/models/simple/unload",
    "v2/repository/models/simple/unload/",
    "v2/repository//models/simple/unload",
    "v2/repository/./models/simple/unload",
    "v2/models/../repository/models/simple/unload",
    "v2/models/%2e%2e/repository/models/simple/unload",
    "v2/health/live/../../repository/models/simple/unload",
    "v2/repository/models/simple/unload?x=v2/health/live",
    "v2,v2/repository/models/simple/unload",
    "v2/repository/models/simple/unload,v2",
    "v2/repository/models/simple/unload, v2/repository/models/simple/unload",
    "./v2/repository/models/simple/unload",
    "../v2/repository/models/simple/unload",
    "v2/repository/models/../../health/live",
    "v2/repository/models/simple\\unload",
]


@pytest.mark.parametrize(("target", "mime"), PERMITTED)
def test_a_redirect_reaches_routes_that_read_state(target: str, mime: str) -> None:
    answer = VertexBench().redirect(target)
    assert (answer.status_code, answer.mimetype) == (200, mime)


@pytest.mark.parametrize("path", [PREDICT, f"{PREDICT}?a=b"])
def test_a_redirect_answers_as_its_target(path: str) -> None:
    bench = VertexBench()

    def redirect(target: str) -> Any:
        return bench.post(b"", path=path, X_Vertex_Ai_Triton_Redirect=target)

    assert redirect("metrics").data == b"# page"
    assert redirect("v2/models/simple/versions/1/config").json["max_batch_size"] == 1
    assert redirect("v2/models/absent").status_code == 404
    assert redirect("v2/systemsharedmemory/region/x/status").status_code == 404
    bench.engine.ready = False
    assert redirect("v2/health/ready").status_code == 400  # as on plain HTTP
    assert redirect("v2/health/live").status_code == 200


def test_a_redirected_index_reads_its_body() -> None:
    bench = VertexBench()
    assert len(bench.redirect("v2/repository/index").json) == 2
    assert len(bench.redirect("v2/repository/index", b'{"ready":true}').json) == 1


@pytest.mark.parametrize("target", ["v2/models/simple/infer", "v2/models/simple/versions/1/infer"])
def test_a_redirect_reaches_inference(target: str) -> None:
    bench = VertexBench()
    answer = bench.redirect(target, V2)
    assert (answer.status_code, answer.json["outputs"][0]["data"]) == (200, [1, 2])
    assert bench.seen[0].model_version == (1 if "versions" in target else -1)
    refused = bench.redirect(target, b'{"instances":[[1,2]]}')
    assert (refused.status_code, list(refused.json)) == (400, ["error"])
    assert bench.redirect(target.replace("simple", "absent"), V2).status_code == 404


def test_redirected_inference_keeps_the_limits() -> None:
    bench = VertexBench(max_request_size=len(V2), max_response_size=100)
    refused = bench.redirect("v2/models/simple/infer", V2 + b" ")
    assert (refused.status_code, refused.json["error"]) == (
        400,
        f"the request has {len(V2) + 1} bytes, at most {len(V2)} are allowed",
    )
    assert bench.seen == []
    assert "the response has" in bench.redirect("v2/models/simple/infer", V2).json["error"]
    bench = VertexBench(timeout_s=0.05)
    bench.engine.respond = lambda request: None
    late = bench.redirect("v2/models/simple/infer", V2)
    assert (late.status_code, late.json["error"]) == (503, "there was no answer within 0.05 seconds")


def test_a_large_redirected_request_warns(caplog: pytest.LogCaptureFixture) -> None:
    VertexBench().redirect("v2/models/simple/infer", V2 + b" " * SHARED_ENDPOINT_BYTES)
    assert sum("shared public endpoint" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("target", FORBIDDEN)
def test_routes_that_change_the_server_are_forbidden(target: str) -> None:
    bench = VertexBench(public_groups=(*GROUPS, "metrics"))
    answer = bench.redirect(target)
    assert (answer.status_code, answer.mimetype, list(answer.json)) == (403, "application/json", ["error"])
    assert target in answer.json["error"]
    assert bench.engine.calls == []


@pytest.mark.parametrize("target", FORBIDDEN)
def test_routes_that_change_the_server_are_forbidden_with_the_key_too(target: str) -> None:
    bench = VertexBench(HttpOptions(restricted=parse_restricted([f"{','.join(GROUPS)}:x-key=k"])))
    assert bench.redirect(target, X_Key="k").status_code == 403
    assert bench.engine.calls == []


@pytest.mark.parametrize("target", [*UNKNOWN, *HIDDEN])
def test_other_paths_cannot_be_reached(target: str) -> None:
    bench = VertexBench(public_groups=(*GROUPS, "metrics"))
    answer = bench.redirect(target)
    assert (answer.status_code, answer.mimetype) == (400, "application/json")
    assert answer.json["error"].startswith("the header X-Vertex-Ai-Triton-Redirect is '")
    assert answer.headers["Trident-Hint"].isascii()
    assert bench.engine.calls == []


def test_a_long_header_is_cut_in_the_error() -> None:
    assert len(VertexBench().redirect("x" * 5000).json["error"]) < 250


def test_a_repeated_header_reaches_no_route() -> None:
    bench = VertexBench()
    for targets in (("v2", "v2/repository/models/simple/unload"), ("v2/repository/models/simple/unload", "v2")):
        headers = [("X-Vertex-Ai-Triton-Redirect", target) for target in targets]
        assert bench.open(PREDICT, method="POST", headers=headers).status_code == 400
    assert bench.engine.calls == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
@pytest.mark.parametrize("target", ["v2", "metrics", "nonsense", FORBIDDEN[0]])
def test_other_methods_are_405(method: str, target: str) -> None:
    answer = VertexBench().open(PREDICT, method=method, headers={"X-Vertex-Ai-Triton-Redirect": target})
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_the_header_is_ignored_on_other_paths() -> None:
    bench = VertexBench()
    header = {"X-Vertex-Ai-Triton-Redirect": "v2"}
    assert bench.get(HEALTH, headers=header).data == b""
    assert bench.get("/v2/models/simple", headers=header).json["name"] == "simple"
    assert bench.post(V2, path="/v2/models/simple/infer", X_Vertex_Ai_Triton_Redirect="v2").json["outputs"]
    assert bench.get("/none", headers=header).status_code == 404


def test_restricted_groups_need_their_header_behind_the_redirect() -> None:
    bench = VertexBench(HttpOptions(restricted=parse_restricted(["health:x-health=h", "inference:x-infer=i"])))
    assert bench.redirect("v2/health/live").status_code == 403
    assert bench.redirect("v2/health/live", X_Infer="i").status_code == 403
    assert bench.redirect("v2/health/live", X_Health="h").status_code == 200
    assert bench.redirect("v2/models/simple/infer", V2).status_code == 403
    assert bench.redirect("v2/models/simple/infer", V2, X_Infer="i").status_code == 200
    assert bench.redirect("v2").status_code == 200
    assert bench.redirect("metrics").status_code == 200


def test_a_redirect_does_not_depend_on_public_groups() -> None:
    bench = VertexBench(public_groups=())
    assert bench.redirect("v2/models/simple/infer", V2).status_code == 200
    assert bench.redirect("metrics").status_code == 200


def test_a_redirect_is_counted_for_the_route_that_it_reaches() -> None:
    bench = VertexBench()
    assert bench.redirect("v2/health/live").status_code == 200
    assert bench.redirect("v2/models/simple/infer", V2).status_code == 200
    assert bench.redirect("v2/models/simple/infer", b"{").status_code == 400
    assert bench.redirect("nonsense").status_code == 400
    infer = "/v2/models/<model>/infer"
    assert bench.responses() == {
        ("GET", "/v2/health/live", 200): 1,
        ("POST", infer, 200): 1,
        ("POST", infer, 400): 1,
        ("POST", "redirect", 400): 1,
    }
