"""The health probe: 200, or 503 with the reason."""

from __future__ import annotations

from tests.unit.adapters.vertex.vertex_bench import HEALTH, PUBLIC, VertexBench
from trident.core.lifecycle.state import Phase, ServingPhase


def test_an_unready_server_answers_503_with_the_progress() -> None:
    bench = VertexBench()
    bench.engine.ready = False
    bench.engine.serving = ServingPhase(name=Phase.LOADING, model="big", done=1, total=3)
    answer = bench.get(HEALTH)
    assert (answer.status_code, answer.mimetype) == (503, "application/json")
    assert answer.json == {"phase": "loading", "model": "big", "loaded": 1, "total": 3}
    bench.engine.serving = ServingPhase(name=Phase.EXITING)
    assert bench.get(HEALTH).json == {"phase": "exiting", "loaded": 0, "total": 0}


def test_a_healthy_server_names_the_models_whose_last_load_failed() -> None:
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


def test_a_server_without_models_is_healthy_only_if_clients_can_load_one() -> None:
    for groups, status in ((PUBLIC, 503), (("model-repository",), 200)):
        bench = VertexBench(public_groups=groups)
        bench.engine.versions = {}
        bench.engine.repository_index = lambda ready_only: []  # type: ignore[method-assign]
        answer = bench.get(HEALTH)
        assert answer.status_code == status
        if status == 503:
            assert answer.json["error"] == "no model is loaded"
