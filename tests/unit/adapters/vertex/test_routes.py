"""The routes of a container: the platform's, compared as text, and the public groups."""

from __future__ import annotations

import pytest

from tests.unit.adapters.vertex.vertex_bench import HEALTH, PREDICT, PUBLIC, VertexBench
from trident.core.frontend.access import GROUPS, parse_restricted
from trident.core.http.front_end import HttpOptions

PREDICTION = {"predictions": [[1, 2]]}
INSTANCES = {"instances": [[1, 2]]}


def test_the_platforms_two_routes_answer() -> None:
    bench = VertexBench()
    assert (bench.get(HEALTH).status_code, bench.get(HEALTH).data) == (200, b"")
    answer = bench.post(INSTANCES)
    assert (answer.status_code, answer.json) == (200, PREDICTION)
    assert bench.post(INSTANCES, path=f"{PREDICT}?a=b").json == PREDICTION


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_on_the_predict_route_are_405(method: str) -> None:
    answer = VertexBench().open(PREDICT, method=method)
    assert (answer.status_code, answer.headers["Allow"], answer.mimetype) == (405, "POST", "application/json")


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "BREW"])
def test_other_methods_on_the_health_route_are_405(method: str) -> None:
    answer = VertexBench().open(HEALTH, method=method)
    assert (answer.status_code, answer.headers["Allow"], answer.mimetype) == (405, "GET", "application/json")


@pytest.mark.parametrize(
    "route",
    [
        "/",
        "/a",
        "/a/",
        "/a//b",
        "/a.b",
        "/[ab]+",
        "/a*",
        "/^a$",
        "/a%2Fb",
        "/a%41",
        "/a:b@c;d,e=f&g'h!",
    ],
)
def test_routes_are_compared_as_text(route: str) -> None:
    bench = VertexBench(predict_route=f"{route}:p", health_route=route)
    assert bench.get(route).status_code == 200
    assert bench.post(INSTANCES, path=f"{route}:p").json == PREDICTION
    bench = VertexBench(predict_route=route, health_route="/health")
    assert bench.post(INSTANCES, path=route).json == PREDICTION
    assert bench.get(route).status_code == 405


@pytest.mark.parametrize(
    ("route", "path"),
    [
        ("/a.b", "/axb"),
        ("/a*", "/aaa"),
        ("/[ab]+", "/ab"),
        ("/a/", "/a"),
        ("/a", "/a/"),
        ("/a%41", "/aA"),
        ("/aA", "/a%41"),
        ("/a", "/A"),
        ("//a", "/a"),
        ("/a", "//a"),
        ("/a/b", "/a//b"),
        ("/a/b", "/a/./b"),
    ],
)
def test_similar_paths_are_404(route: str, path: str) -> None:
    bench = VertexBench(predict_route=route, health_route=f"{route}-health")
    assert bench.post(INSTANCES, path=path).status_code == 404
    bench = VertexBench(predict_route="/p", health_route=route)
    assert bench.get(path).status_code == 404


def test_one_path_may_serve_both_routes() -> None:
    bench = VertexBench(predict_route="/both", health_route="/both")
    assert bench.get("/both").status_code == 200
    assert bench.post(INSTANCES, path="/both").json == PREDICTION
    assert bench.redirect("v2").status_code == 404
    answer = bench.open("/both", method="PUT")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, POST")


def test_the_platforms_routes_may_be_v2_paths() -> None:
    bench = VertexBench(predict_route="/v2/models/simple/infer", health_route="/v2/health/ready")
    bench.engine.ready = False
    assert bench.get("/v2/health/ready").status_code == 503  # and not 400
    bench.engine.ready = True
    assert bench.post(INSTANCES, path="/v2/models/simple/infer").json == PREDICTION
    bench.engine.versions = {"simple": (1,), "other": (1,)}  # the route names the model
    assert bench.post(INSTANCES, path="/v2/models/simple/infer").json == PREDICTION
    assert bench.post(path="/v2/models/other/infer").status_code == 200


ABSENT = ["/", "/v1", "/predict", f"{PREDICT}/", f"/{PREDICT}", f"{HEALTH}/", "/v2/nothing", "/v2/", "/a/b/c"]


@pytest.mark.parametrize("path", ABSENT)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "BREW"])
def test_an_unknown_route_is_404_and_lists_the_routes(path: str, method: str) -> None:
    answer = VertexBench().open(path, method=method)
    assert (answer.status_code, answer.mimetype) == (404, "application/json")
    assert answer.json == {
        "error": f"there is no such route; the routes are: GET {HEALTH}, POST {PREDICT}, and those of the groups "
        "health, metadata, inference, model-config, statistics, metrics"
    }
    assert "--public-routes" in answer.headers["Trident-Hint"]


OF_GROUPS = {
    "health": [("GET", "/v2/health/live"), ("GET", "/v2/health/ready"), ("GET", "/v2/models/simple/ready")],
    "metadata": [("GET", "/v2"), ("GET", "/v2/models/simple"), ("GET", "/v2/models/simple/versions/3")],
    "inference": [("POST", "/v2/models/simple/infer"), ("POST", "/v2/models/simple/versions/3/infer")],
    "model-config": [("GET", "/v2/models/simple/config")],
    "statistics": [("GET", "/v2/models/stats"), ("GET", "/v2/models/simple/stats")],
    "metrics": [("GET", "/metrics"), ("GET", "/metrics/")],
    "model-repository": [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/simple/load"),
        ("POST", "/v2/repository/models/simple/unload"),
    ],
    "shared-memory": [("GET", "/v2/systemsharedmemory/status"), ("GET", "/v2/cudasharedmemory/status")],
    "trace": [("GET", "/v2/trace/setting"), ("GET", "/v2/models/simple/trace/setting")],
    "logging": [("GET", "/v2/logging")],
}


def test_this_test_knows_all_groups() -> None:
    assert OF_GROUPS.keys() == {*GROUPS, "metrics"}


@pytest.mark.parametrize("groups", [(), PUBLIC, ("logging",), ("health", "model-repository"), tuple(OF_GROUPS)])
def test_only_public_groups_are_served(groups: tuple[str, ...]) -> None:
    bench = VertexBench(public_groups=groups)
    served = {
        group
        for group, requests in OF_GROUPS.items()
        for method, path in requests
        if bench.open(path, method=method, data=b"" if method == "GET" else b"{}").status_code != 404
    }
    assert served == set(groups)
    for group in served:
        for method, path in OF_GROUPS[group]:
            body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}' if "infer" in path else b""
            assert bench.open(path, method=method, data=body).status_code == 200, path
    assert bench.post(INSTANCES).json == PREDICTION
    assert bench.get(HEALTH).status_code == 200
    assert bench.redirect("v2").status_code == 200


def test_the_list_of_routes_says_none_without_groups() -> None:
    assert VertexBench(public_groups=()).get("/v2").json["error"].endswith("those of the groups (none)")


def test_restricted_groups_need_their_header() -> None:
    restricted = parse_restricted(["health:x-health=h", "inference:x-infer=i", "metadata:x-meta=m"])
    bench = VertexBench(HttpOptions(restricted=restricted))
    refused = bench.get(HEALTH)
    assert (refused.status_code, refused.mimetype) == (403, "application/json")
    assert refused.json == {"error": "This API is restricted, expecting header 'x-health'"}
    assert bench.get(HEALTH, headers={"X-Health": "h"}).status_code == 200
    refused = bench.post(INSTANCES)
    assert (refused.status_code, refused.mimetype) == (403, "application/json")
    assert bench.post(INSTANCES, X_Infer="i").json == PREDICTION
    assert bench.get("/v2").status_code == 403
