"""Many models in one container, which the platform loads and unloads.

Source: docs/spec/sagemaker.md section A5.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.lifecycle.changing_models import WIDTH, add_scaled
from tests.contract.sagemaker.sagemaker_archives import CSV, ONES, is_scaled_by, listed, write_flat, write_nested
from tests.contract.sagemaker.sagemaker_container import LIMIT_S, SageMakerContainer
from tests.unit.onnx_models import waiting, write_version
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "two-engines")]

MEMORY_MB = 500
HEAVY_MB = 100
# Of the model `waiting`: many milliseconds.
ROUNDS = 20_000


class Endpoint:
    """A container with a memory limit, and the folder into which the platform unpacks archives."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "models"
        self.root.mkdir()
        self.container = SageMakerContainer(
            folder / "log",
            SAGEMAKER_MULTI_MODEL="true",
            TRIDENT_SAGEMAKER_MODELS_ROOT=str(self.root),
            TRIDENT_SAGEMAKER_MEMORY_LIMIT_MB=str(MEMORY_MB),
        )

    def url(self, name: str) -> str:
        return f"{self.root}/{name}/model"

    def put(self, name: str, factor: int, megabytes: int = 0) -> None:
        write_flat(Path(self.url(name)), factor, megabytes)

    def load(self, name: str) -> int:
        return self.container.load(name, self.url(name)).status

    def unload(self, name: str) -> int:
        return self.container.ask("DELETE", f"/models/{name}").status

    def answers(self, name: str, factor: int) -> bool:
        answer = self.container.ask("POST", f"/models/{name}/invoke", ONES, Content_Type=CSV, Accept=CSV)
        return answer.status == 200 and is_scaled_by(answer.body, factor)

    def invoke_status(self, name: str) -> int:
        return self.container.ask("POST", f"/models/{name}/invoke", ONES, Content_Type=CSV).status

    def models(self) -> dict[str, str]:
        """All pages of the container's list."""
        found: dict[str, str] = {}
        token = ""
        while True:
            answer = self.container.ask(
                "GET", f"/models?limit=2&next_page_token={quote(token)}" if token else "/models?limit=2"
            )
            assert answer.status == 200, answer.text
            page = listed(answer.body)
            assert len(page) <= 2
            assert not page.keys() & found.keys()
            found |= page
            token = json.loads(answer.body).get("nextPageToken", "")
            if not token:
                return found


@pytest.fixture(scope="module")
def running(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    made = Endpoint(tmp_path_factory.mktemp("endpoint"))
    with made.container:
        yield made


@pytest.fixture
def endpoint(running: Endpoint) -> Iterator[Endpoint]:
    """The endpoint without models. It is emptied after each test."""
    yield running
    for name in running.models():
        assert running.unload(name) == 200
    assert running.models() == {}
    assert running.container.ask("GET", "/ping").status == 200


def test_flat_and_nested_folders_serve_under_their_given_names(endpoint: Endpoint) -> None:
    write_nested(Path(endpoint.url("0-nested")), 2)
    for number in range(1, 6):
        endpoint.put(f"{number}-flat", number)
    write_flat(Path(endpoint.url("6-below"), "sub"), 6)
    assert [endpoint.load(name) for name in ("0-nested", *(f"{n}-flat" for n in range(1, 6)))] == [200] * 6
    assert endpoint.container.load("6-below", f"{endpoint.url('6-below')}/sub").status == 200
    assert endpoint.answers("0-nested", 2)
    assert all(endpoint.answers(f"{number}-flat", number) for number in range(1, 6))
    assert endpoint.answers("6-below", 6)
    names = ["0-nested", *(f"{number}-flat" for number in range(1, 6))]
    assert endpoint.models() == {
        **{name: endpoint.url(name) for name in names},
        "6-below": f"{endpoint.url('6-below')}/sub",
    }
    one = endpoint.container.ask("GET", "/models/3-flat")
    assert json.loads(one.body) == {"modelName": "3-flat", "modelUrl": endpoint.url("3-flat")}


def test_an_unload_during_a_split_invocation_does_not_end_it(endpoint: Endpoint) -> None:
    """An invocation that became several requests is answered whole before the unload takes effect."""
    write_version(waiting(), Path(endpoint.url("slow")), "inside", "instance_group [ { count: 1 kind: KIND_CPU } ]")
    assert endpoint.load("slow") == 200
    body = json.dumps({"instances": [[ROUNDS]] * 40}).encode()

    def is_queued() -> bool:
        page = endpoint.container.ask("GET", "/metrics").text
        return any(int(number) for number in re.findall(r"^nv_inference_pending_request_count{.*} (\d+)", page, re.M))

    with ThreadPoolExecutor(1) as pool:
        path = "/models/slow/invoke"
        invocation = pool.submit(endpoint.container.ask, "POST", path, body, Content_Type="application/json")
        until(is_queued, "the invocation never waits")
        assert endpoint.unload("slow") == 200
        answer = invocation.result(LIMIT_S)
    assert answer.status == 200, answer.text
    assert len(json.loads(answer.body)["predictions"]) == 40
    assert endpoint.invoke_status("slow") == 404


def test_full_memory_is_a_507_until_a_model_is_unloaded(endpoint: Endpoint) -> None:
    loaded = []
    while True:
        name = f"heavy{len(loaded)}"
        endpoint.put(name, len(loaded) + 1, HEAVY_MB)
        answer = endpoint.container.load(name, endpoint.url(name))
        if answer.status == 507:
            break
        assert answer.status == 200, answer.text
        loaded.append(name)
        assert len(loaded) * HEAVY_MB <= MEMORY_MB
    assert loaded
    assert "MiB" in answer.text
    assert endpoint.models() == {each: endpoint.url(each) for each in loaded}
    assert endpoint.invoke_status(name) == 404
    assert endpoint.load(name) == 507  # another attempt changes nothing
    assert endpoint.unload(loaded[0]) == 200
    assert endpoint.load(name) == 200  # the memory is free when the unload is answered
    assert endpoint.answers(name, len(loaded) + 1)
    assert all(endpoint.answers(each, number) for number, each in enumerate(loaded[1:], 2))
    assert endpoint.invoke_status(loaded[0]) == 404


def test_loads_and_unloads_do_not_disturb_other_models(endpoint: Endpoint) -> None:
    endpoint.put("steady", 7)
    for number in range(4):
        endpoint.put(f"other{number}", number)
    assert endpoint.load("steady") == 200
    over = threading.Event()

    def ask() -> int:
        count = 0
        while not over.is_set():
            assert endpoint.answers("steady", 7)
            count += 1
        return count

    def change(number: int) -> None:
        for _ in range(5):
            assert endpoint.load(f"other{number}") == 200
            assert endpoint.answers(f"other{number}", number)
            assert endpoint.unload(f"other{number}") == 200

    with ThreadPoolExecutor(6) as pool:
        callers = [pool.submit(ask) for _ in range(2)]
        try:
            list(pool.map(change, range(4)))
        finally:
            over.set()
        assert all(caller.result(LIMIT_S) > 0 for caller in callers)
    assert list(endpoint.models()) == ["steady"]


def test_load_during_an_unload_is_answered_truly(endpoint: Endpoint) -> None:
    endpoint.put("again", 2, 20)
    for _ in range(5):
        assert endpoint.load("again") == 200
        with ThreadPoolExecutor(2) as pool:
            unload, load = pool.submit(endpoint.unload, "again"), pool.submit(endpoint.load, "again")
            outcomes = (unload.result(LIMIT_S), load.result(LIMIT_S))
        # Either was first: the load finds the model, or waits until it is unloaded.
        assert outcomes in ((200, 200), (200, 409))
        is_loaded = outcomes == (200, 200)
        assert endpoint.invoke_status("again") == (200 if is_loaded else 404)
        assert endpoint.unload("again") == (200 if is_loaded else 404)


def test_names_and_urls_cannot_leave_their_folder(endpoint: Endpoint) -> None:
    write_flat(endpoint.root.parent / "secret" / "model", 1)
    (endpoint.root / "link").symlink_to("../secret")
    endpoint.put("a", 1)
    for name, url in (
        ("../a", f"{endpoint.root}/a/model"),
        ("a\0b", f"{endpoint.root}/a/model"),
        ("x", f"{endpoint.root}/../secret/model"),
        ("x", f"{endpoint.root}/link/model"),
        ("x", "/proc/self/model"),
        ("x", f"{endpoint.root}/nothing/model"),
    ):
        answer = endpoint.container.load(name, url)
        assert (answer.status, list(json.loads(answer.body))) == (400, ["error"]), answer.text
    for name in ("..", "%2e%2e", "..%2fsecret", "%00", "%ff", "n" * 4000):
        for method, path in (("DELETE", ""), ("POST", "/invoke")):
            answer = endpoint.container.ask(method, f"/models/{name}{path}", ONES, Content_Type=CSV)
            assert answer.status in (400, 404), answer.text
    assert endpoint.models() == {}


def test_broken_model_is_a_400_and_leaves_nothing(endpoint: Endpoint) -> None:
    folder = write_flat(Path(endpoint.url("broken")), 1)
    (folder / "1" / "model.onnx").write_bytes(b"no model")
    assert endpoint.load("broken") == 400
    assert endpoint.models() == {}
    write_flat(folder, 3)
    assert endpoint.load("broken") == 200
    assert endpoint.answers("broken", 3)


def test_an_ensemble_comes_with_the_models_of_its_steps(endpoint: Endpoint) -> None:
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
        assert endpoint.load(name) == 200
    assert endpoint.answers("six", 6)
    assert endpoint.answers("ten", 10)
    assert endpoint.unload("six") == 200
    assert endpoint.invoke_status("six") == 404
    assert endpoint.answers("ten", 10)
    assert endpoint.unload("ten") == 200
