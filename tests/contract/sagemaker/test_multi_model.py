"""Many models in one container, which the platform loads and unloads.

Source: docs/spec/sagemaker.md section A5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.lifecycle.changing_models import WIDTH, add_scaled
from tests.contract.platforms.container import LIMIT_S
from tests.contract.sagemaker.sagemaker_archives import MultiModelContainer, write_flat, write_nested
from tests.unit.onnx_models import waiting, write_version
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "two-engines")]

# Two engines divide it. The load of a model takes twice its size for a while.
MEMORY_MB = 500
HEAVY_MB = 100
# Of the model `waiting`: many milliseconds.
ROUNDS = 20_000


@pytest.fixture(scope="module")
def running(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModelContainer]:
    folder = tmp_path_factory.mktemp("endpoint")
    with MultiModelContainer(folder, TRIDENT_MODEL_MEMORY=f"{MEMORY_MB}MB") as made:
        yield made


@pytest.fixture
def endpoint(running: MultiModelContainer) -> Iterator[MultiModelContainer]:
    """A container with a memory limit and without models. It is emptied after each test."""
    yield running
    for name in running.models():
        assert running.unload(name) == 200
    assert running.models() == {}
    assert running.ask("GET", "/ping").status == 200


def test_flat_and_nested_folders_serve_under_the_given_names(endpoint: MultiModelContainer) -> None:
    write_nested(Path(endpoint.url("0-nested")), 2)
    for number in range(1, 6):
        endpoint.put(f"{number}-flat", number)
    write_flat(Path(endpoint.url("6-below"), "sub"), 6)
    assert [endpoint.load_status(name) for name in ("0-nested", *(f"{n}-flat" for n in range(1, 6)))] == [200] * 6
    assert endpoint.load("6-below", f"{endpoint.url('6-below')}/sub").status == 200
    assert endpoint.status("0-nested", 2) == 200
    assert all(endpoint.status(f"{number}-flat", number) == 200 for number in range(1, 6))
    assert endpoint.status("6-below", 6) == 200
    names = ["0-nested", *(f"{number}-flat" for number in range(1, 6))]
    assert endpoint.models() == {
        **{name: endpoint.url(name) for name in names},
        "6-below": f"{endpoint.url('6-below')}/sub",
    }
    one = endpoint.ask("GET", "/models/3-flat")
    assert json.loads(one.body) == {"modelName": "3-flat", "modelUrl": endpoint.url("3-flat")}


def test_an_unload_during_a_split_invocation_does_not_end_it(endpoint: MultiModelContainer) -> None:
    """An invocation that became several requests is answered whole before the unload takes effect."""
    write_version(waiting(), Path(endpoint.url("slow")), "inside", "instance_group [ { count: 1 kind: KIND_CPU } ]")
    assert endpoint.load_status("slow") == 200
    body = json.dumps({"instances": [[ROUNDS]] * 40}).encode()

    def is_queued() -> bool:
        page = endpoint.ask("GET", "/metrics").text
        return any(int(number) for number in re.findall(r"^nv_inference_pending_request_count{.*} (\d+)", page, re.M))

    with ThreadPoolExecutor(1) as pool:
        path = "/models/slow/invoke"
        invocation = pool.submit(endpoint.ask, "POST", path, body, Content_Type="application/json")
        until(is_queued, "the invocation never waits")
        assert endpoint.unload("slow") == 200
        answer = invocation.result(LIMIT_S)
    assert answer.status == 200, answer.text
    assert len(json.loads(answer.body)["predictions"]) == 40
    assert endpoint.status("slow") == 404


def test_full_memory_is_a_507_until_a_model_is_unloaded(endpoint: MultiModelContainer) -> None:
    loaded = []
    while True:
        name = f"heavy{len(loaded)}"
        endpoint.put(name, len(loaded) + 1, HEAVY_MB)
        answer = endpoint.load(name, endpoint.url(name))
        if answer.status == 507:
            break
        assert answer.status == 200, answer.text
        loaded.append(name)
        assert len(loaded) * HEAVY_MB <= MEMORY_MB
    assert loaded
    assert "MiB" in answer.text
    assert endpoint.models() == {each: endpoint.url(each) for each in loaded}
    assert endpoint.status(name) == 404
    assert endpoint.load_status(name) == 507  # another attempt changes nothing
    assert endpoint.unload(loaded[0]) == 200
    assert endpoint.load_status(name) == 200  # the memory is free when the unload is answered
    assert endpoint.status(name, len(loaded) + 1) == 200
    assert all(endpoint.status(each, number) == 200 for number, each in enumerate(loaded[1:], 2))
    assert endpoint.status(loaded[0]) == 404


def test_an_ensemble_comes_with_the_models_of_its_steps(endpoint: MultiModelContainer) -> None:
    """Two archives have models of the same names, which belong to their own ensembles alone."""
    for name, factor in (("six", 3), ("ten", 5)):
        folder = Path(endpoint.url(name))
        add_scaled(folder, "first", 2)
        add_scaled(folder, "second", factor)
        write_ensemble(
            folder,
            "product",
            [("INPUT0", "TYPE_FP32", [WIDTH])],
            [("OUTPUT0", "TYPE_FP32", [WIDTH])],
            [
                step("first", {"INPUT0": "INPUT0"}, {"OUTPUT0": "x"}),
                step("second", {"INPUT0": "x"}, {"OUTPUT0": "OUTPUT0"}),
            ],
        )
        assert endpoint.load_status(name) == 200
    assert endpoint.status("six", 6) == 200
    assert endpoint.status("ten", 10) == 200
    assert endpoint.unload("six") == 200
    assert endpoint.status("six") == 404
    assert endpoint.status("ten", 10) == 200
    assert endpoint.unload("ten") == 200
