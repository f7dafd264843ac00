"""The container as a WSGI application, and its differences from the v2 core."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.adapters.platform_bench import V2
from tests.unit.adapters.vertex.vertex_bench import HEALTH, PREDICT, PUBLIC, VertexBench
from trident.adapters.vertex.predict import SHARED_ENDPOINT_BYTES, SizeLimits, set_deadline
from trident.core.errors import DeadlineExceeded, InvalidRequest
from trident.core.frontend.access import GROUPS, parse_restricted
from trident.core.http.front_end import HttpOptions
from trident.core.http.reply import CLIENT_GONE_KEY
from trident.core.lifecycle.state import Phase, ServingPhase

INFER = "/v2/models/simple/infer"


def test_the_limits_apply_only_to_the_predict_route() -> None:
    assert VertexBench(max_request_size=1).predict(V2, path=INFER).status_code == 200
    assert VertexBench(max_request_size=1).predict(V2).status_code == 400


def test_a_predict_route_with_a_version_beyond_64_bits_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="version"):
        VertexBench(predict_route=f"/v2/models/simple/versions/{2**63}/infer")


def test_responses_of_the_platform_s_routes_are_counted() -> None:
    bench = VertexBench()
    bench.predict()
    bench.get(HEALTH)
    for method in ("BREW", "BOIL"):  # a client must not make up labels
        bench.open(PREDICT, method=method)
    assert bench.responses() == {("POST", "predict", 200): 1, ("GET", "health", 200): 1, ("UNKNOWN", "predict", 405): 2}


# --- the routes of a container: the platform's, compared as text, and the public groups


PREDICTION = {"predictions": [[1, 2]]}
INSTANCES = {"instances": [[1, 2]]}


@pytest.mark.parametrize("route", ["/", "/a/", "/a//b", "/[ab]+", "/^a$", "/a%2Fb", "/a:b@c;d,e=f&g'h!"])
def test_routes_are_compared_as_text(route: str) -> None:
    bench = VertexBench(predict_route=f"{route}:p", health_route=route)
    assert bench.get(route).status_code == 200
    assert bench.predict(INSTANCES, path=f"{route}:p").json == PREDICTION
    bench = VertexBench(predict_route=route, health_route="/health")
    assert bench.predict(INSTANCES, path=route).json == PREDICTION
    assert bench.get(route).status_code == 405


def test_one_path_may_serve_both_routes() -> None:
    bench = VertexBench(predict_route="/both", health_route="/both")
    assert bench.get("/both").status_code == 200
    assert bench.predict(INSTANCES, path="/both").json == PREDICTION
    assert bench.redirect("v2").status_code == 404
    assert bench.responses()["POST", "predict", 200] == bench.responses()["GET", "health", 200] == 1
    answer = bench.open("/both", method="PUT")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, POST")


def test_the_platforms_routes_may_be_v2_paths() -> None:
    bench = VertexBench(predict_route="/v2/models/simple/infer", health_route="/v2/health/ready")
    bench.engine.ready = False
    assert bench.get("/v2/health/ready").status_code == 503  # and not 400
    bench.engine.ready = True
    assert bench.predict(INSTANCES, path="/v2/models/simple/infer").json == PREDICTION
    bench.engine.versions = {"simple": (1,), "other": (1,)}  # the route names the model
    assert bench.predict(INSTANCES, path="/v2/models/simple/infer").json == PREDICTION
    assert bench.predict(path="/v2/models/other/infer").status_code == 200


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


def test_all_groups_are_tested() -> None:
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
    assert bench.predict(INSTANCES).json == PREDICTION
    assert bench.get(HEALTH).status_code == 200
    assert bench.redirect("v2").status_code == 200


def test_restricted_groups_need_their_header() -> None:
    groups = ["health:x-health=h", "inference:x-infer=i", "metadata:x-meta=m", "model-repository:x-control=c"]
    restricted = parse_restricted(groups)
    bench = VertexBench(HttpOptions(restricted=restricted))
    refused = bench.get(HEALTH)
    assert (refused.status_code, refused.mimetype) == (403, "application/json")
    assert refused.json == {"error": "This API is restricted, expecting header 'x-health'"}
    assert bench.get(HEALTH, headers={"X-Health": "h"}).status_code == 200
    refused = bench.predict(INSTANCES)
    assert (refused.status_code, refused.mimetype) == (403, "application/json")
    assert bench.predict(INSTANCES, X_Infer="i").json == PREDICTION
    assert bench.get("/v2").status_code == 403
    redirected = bench.redirect("v2/repository/index")
    assert (redirected.status_code, "x-control" in redirected.json["error"]) == (403, True)
    assert bench.redirect("v2/repository/index", b"{}", X_Control="c", X_Infer="i").status_code == 200


# --- the routes that the redirect header reaches, and those that it does not


FORBIDDEN = [f"v2/repository/{one}models/simple/{verb}" for one in ("", "r/") for verb in ("load", "unload")]
FORBIDDEN += [
    f"v2/{kind}sharedmemory/{verb}"
    for kind in ("system", "cuda")
    for verb in ("region/x/register", "region/x/unregister", "unregister")
]


@pytest.mark.parametrize("path", [PREDICT, f"{PREDICT}?a=b"])
def test_a_redirect_answers_as_its_target(path: str) -> None:
    bench = VertexBench()

    def redirect(target: str) -> Any:
        return bench.predict(b"", path=path, X_Vertex_Ai_Triton_Redirect=target)

    assert redirect("metrics").data == b"# page"
    assert redirect("v2/models/simple/versions/1/config").json["max_batch_size"] == 1
    assert redirect("v2/models/simple/versions/3/stats").json["model_stats"][0]["name"] == "simple"
    assert redirect("v2/systemsharedmemory/status").json == []
    assert redirect("v2/models/absent").status_code == 404
    assert redirect("v2/systemsharedmemory/region/x/status").status_code == 404
    bench.engine.ready = False
    assert redirect("v2/health/ready").status_code == 400  # as on plain HTTP
    assert redirect("v2/health/live").status_code == 200


def test_redirected_inference_keeps_the_limits() -> None:
    assert "Unable to parse 'inputs'" in VertexBench().redirect("v2/models/simple/infer", b'{"instances":[[1,2]]}').text
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


@pytest.mark.parametrize("key", [{}, {"X_Key": "k"}], ids=["no key", "key"])
def test_routes_that_change_the_server_are_forbidden(key: dict[str, str]) -> None:
    restricted = parse_restricted([f"{','.join(GROUPS)}:x-key=k"]) if key else ()
    bench = VertexBench(HttpOptions(restricted=restricted), public_groups=(*GROUPS, "metrics"))
    for target in FORBIDDEN:
        answer = bench.redirect(target, **key)
        assert (answer.status_code, answer.mimetype, list(answer.json)) == (403, "application/json", ["error"])
        assert target in answer.json["error"]
    assert bench.engine.calls == []


@pytest.mark.parametrize(
    "target",
    ["", "/v2", "v2/", "v2//models/simple", "V2", "v2?a=b", "v2/trace/setting", "v2/logging", "v2,v2", PREDICT[1:]],
)
def test_other_targets_are_unknown(target: str) -> None:
    assert VertexBench().redirect(target).status_code == 400


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


# --- the health probe: 200, or 503 with the reason


def test_an_unready_server_answers_503_with_the_progress() -> None:
    bench = VertexBench()
    bench.engine.ready = False
    bench.engine.serving = ServingPhase(name=Phase.LOADING, model="big", done=1, total=3)
    answer = bench.get(HEALTH)
    assert (answer.status_code, answer.mimetype) == (503, "application/json")
    assert answer.json == {"phase": "loading", "model": "big", "loaded": 1, "total": 3}
    bench.engine.serving = ServingPhase(name=Phase.EXITING)
    assert bench.get(HEALTH).json == {"phase": "exiting", "loaded": 0, "total": 0}


def test_healthy_server_names_models_whose_reload_failed() -> None:
    bench = VertexBench()
    assert bench.get(HEALTH).data == b""
    bench.engine.serving = ServingPhase(name=Phase.READY, done=2, total=2, failures={"big": "no memory"})
    answer = bench.get(HEALTH)
    assert (answer.status_code, answer.data, answer.headers["Trident-Failures"]) == (200, b"", "big: no memory")


def test_a_server_without_the_default_model_is_unhealthy() -> None:
    bench = VertexBench(default_model="absent")
    answer = bench.get(HEALTH)
    assert (answer.status_code, answer.json["error"]) == (503, "the default model 'absent' is not loaded")
    bench.engine.versions["absent"] = (1,)
    assert bench.get(HEALTH).status_code == 200
    bench = VertexBench(predict_route="/v2/models/absent/infer")
    assert bench.get(HEALTH).json["error"] == "the default model 'absent' is not loaded"


def test_empty_server_is_healthy_only_if_clients_can_load_models() -> None:
    for groups, status in ((PUBLIC, 503), (("model-repository",), 200)):
        bench = VertexBench(public_groups=groups)
        bench.engine.versions = {}
        bench.engine.repository_index = lambda ready_only: []  # type: ignore[method-assign]
        answer = bench.get(HEALTH)
        assert answer.status_code == status
        if status == 503:
            assert answer.json["error"] == "no model is loaded"


# --- the size limits and their warnings


class Now:
    value = 0.0

    def __call__(self) -> float:
        return self.value


@pytest.fixture
def now() -> Now:
    return Now()


def test_bodies_over_a_shared_endpoints_limit_warn_once_a_minute(now: Now, caplog: pytest.LogCaptureFixture) -> None:
    limits = SizeLimits(0, 0, now)
    limits.check_request(SHARED_ENDPOINT_BYTES)
    assert caplog.messages == []
    for now.value, count in ((0.0, 2), (59.9, 2), (60.0, 4)):
        limits.check_request(SHARED_ENDPOINT_BYTES + 1)
        limits.check_response(SHARED_ENDPOINT_BYTES + 1)
        assert len(caplog.messages) == count


def test_after_its_deadline_a_request_is_ended() -> None:
    now = Now()
    environ: dict[str, Any] = {CLIENT_GONE_KEY: lambda: now.value == 1.0}
    set_deadline(environ, 2.5, now)
    deadline = environ[CLIENT_GONE_KEY]
    assert not deadline()
    now.value = 1.0
    assert deadline()  # the client is gone
    now.value = 2.5
    with pytest.raises(DeadlineExceeded, match=r"^there was no answer within 2\.5 seconds$"):
        deadline()
