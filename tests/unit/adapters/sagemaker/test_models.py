"""The `/models` routes on an engine that only records its loads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from werkzeug.test import Client

from tests.project import pure_python_only
from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S
from tests.unit.fake_engine import FakeEngine
from tests.waiting import until
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.sagemaker.memory import MemoryBudget
from trident.adapters.sagemaker.settings import PingMode, SageMakerSettings
from trident.core.errors import ModelLoadFailed, ModelNotFound, OutOfMemory
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.front_end import HttpOptions
from trident.core.http.metrics import MetricsPage
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor

V2 = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'


class Engine(FakeEngine):
    def load_directory(self, name: str, directory: str) -> None:
        super().load_directory(name, directory)
        self.versions[name] = (1,)


class Bench:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[InferenceRequest] = []
        self.engine = Engine(self._respond)
        settings = SageMakerSettings(multi_model=True, models_root=str(root), ping_mode=PingMode.LIVE)
        budget = MemoryBudget(lambda: None)
        self.application = SageMakerApplication(
            self.engine, HttpOptions(), ThreadBridge(), settings, MetricsPage(lambda _: b""), memory=budget
        )
        self.open: Any = Client(self.application).open

    def url(self, name: str) -> str:
        return f"{self.root}/{name}/model"

    def load(self, name: str) -> Any:
        folder = self.root / name / "model"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(b"onnx")
        return self.open("/models", method="POST", json={"model_name": name, "url": self.url(name)})

    def described(self, name: str) -> dict[str, str]:
        return {"modelName": name, "modelUrl": self.url(name)}

    def _respond(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        array = np.array([1, 2], np.int32)
        return InferenceResponse(request.model_name, 1, [OutputTensor("OUT", "INT32", (2,), array)])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_model_is_loaded_listed_described_and_unloaded(bench: Bench) -> None:
    assert bench.open("/models").json == {"models": []}
    answer = bench.load("abc")
    assert (answer.status_code, answer.data) == (200, b"")
    assert bench.open("/models/abc").json == bench.described("abc")
    assert bench.open("/models").json == {"models": [bench.described("abc")]}
    answer = bench.load("abc")
    assert (answer.status_code, list(answer.json)) == (409, ["error"])
    assert bench.open("/models/abc/invoke", method="POST", data=V2).status_code == 200
    answer = bench.open("/models/abc", method="DELETE")
    assert (answer.status_code, answer.data) == (200, b"")
    for path, method in (("/models/abc", "GET"), ("/models/abc", "DELETE"), ("/models/abc/invoke", "POST")):
        answer = bench.open(path, method=method, data=V2)
        assert (answer.status_code, list(answer.json)) == (404, ["error"])


def test_a_model_is_invoked_by_the_name_in_the_path(bench: Bench) -> None:
    for name in ("a.b-1", "ünder score"):
        assert bench.load(name).status_code == 200
        answer = bench.open(
            f"/models/{name}/invoke", method="POST", data=V2, headers={"X-Amzn-SageMaker-Target-Model": "other.tar.gz"}
        )
        assert (answer.status_code, answer.json["outputs"][0]["data"]) == (200, [1, 2])
        assert bench.seen[-1].model_name == name
        assert bench.seen[-1].parameters == {"X-Amzn-SageMaker-Target-Model": "other.tar.gz"}
        assert bench.open(f"/models/{name}").json == bench.described(name)


@pure_python_only
def test_invocations_take_every_format_without_flask(bench: Bench) -> None:
    bench.load("m")
    bench.application.wsgi_app = None  # type: ignore[method-assign, assignment]
    answer = bench.open(
        "/models/m/invoke", method="POST", data=b"1,2\n", content_type="text/csv", headers={"Accept": "text/csv"}
    )
    assert (answer.status_code, answer.mimetype) == (200, "text/csv")


def test_an_unload_between_the_requests_of_one_invocation_waits_for_it(bench: Bench) -> None:
    """Each row is a request of a model that does not batch. The platform unloads it while the first one runs."""
    bench.load("m")
    deletion: list[Any] = []

    def unload() -> None:
        deletion.append(bench.open("/models/m", method="DELETE"))

    thread = threading.Thread(target=unload)

    def respond(request: InferenceRequest) -> InferenceResponse:
        bench.seen.append(request)
        if len(bench.seen) == 1:
            thread.start()
            until(lambda: bench.open("/models").json == {"models": []})
        if "unload" in [call[0] for call in bench.engine.calls]:
            return InferenceResponse(request.model_name, 1, [], error=ModelNotFound("it has no available versions"))
        return InferenceResponse(request.model_name, 1, [OutputTensor("OUT", "INT32", (1,), np.array([1], np.int32))])

    bench.engine.respond = respond
    rows = b"[[1,2],[3],[4,5,6]]"
    answer = bench.open("/models/m/invoke", method="POST", data=rows, content_type="application/json")
    assert (answer.status_code, answer.json, len(bench.seen)) == (200, [[1]] * 3, 3)
    thread.join(LIMIT_S)
    assert deletion[0].status_code == 200
    assert bench.engine.calls[-1] == ("unload", "m", True)


def test_pages_follow_their_tokens(bench: Bench) -> None:
    names = [f"m{n:03}" for n in range(7)]
    for name in names:
        bench.load(name)
    found, token, pages = [], "", 0
    while pages == 0 or token:
        page = bench.open("/models", query_string={"limit": 3, "next_page_token": token}).json
        assert len(page["models"]) <= 3
        found += [one["modelName"] for one in page["models"]]
        token = page.get("nextPageToken", "")
        pages += 1
    assert (found, pages) == (names, 3)
    assert len(bench.open("/models").json["models"]) == 7


@pytest.mark.parametrize(
    "query",
    [{"limit": "0"}, {"limit": "-1"}, {"limit": "x"}, {"limit": "²"}, {"limit": "9" * 50}, {"next_page_token": "?"}],
)
def test_invalid_pages_are_refused(bench: Bench, query: dict[str, str]) -> None:
    answer = bench.open("/models", query_string=query)
    assert (answer.status_code, list(answer.json)) == (400, ["error"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"model_name":"m"}',
        b'{"model_name":1,"url":"u"}',
        b'{"model_name":"m","url":"/etc"}',
        b'{"model_name":"../m","url":"/opt/ml/models/m/model"}',
        b'{"model_name":"' + b"x" * 70_000 + b'","url":"u"}',
    ],
)
def test_invalid_loads_are_refused(bench: Bench, body: bytes) -> None:
    answer = bench.open("/models", method="POST", data=body)
    assert (answer.status_code, list(answer.json)) == (400, ["error"])
    assert bench.engine.calls == []


def test_a_load_body_over_the_fixed_limit_names_no_option(bench: Bench) -> None:
    answer = bench.open("/models", method="POST", data=b" " * 65537)
    assert answer.json["error"] == (
        "request JSON size of 65537 bytes exceeds the maximum allowed input size of 65536 bytes. "
        "The limit of this route is fixed."
    )


def test_a_missing_model_is_404(bench: Bench) -> None:
    answer = bench.open("/models", method="POST", json={"model_name": "gone", "url": bench.url("gone")})
    assert (answer.status_code, "there is no folder" in answer.json["error"]) == (400, True)


def test_a_failed_load_answers_400_with_the_reason(bench: Bench) -> None:
    bench.engine.refusal = OutOfMemory("no memory left")
    answer = bench.load("m")
    assert (answer.status_code, answer.json) == (507, {"error": "no memory left"})
    bench.engine.refusal = ModelLoadFailed("the file is no model", hint="export it again")
    answer = bench.load("m")
    assert (answer.status_code, answer.json) == (400, {"error": "the file is no model"})
    assert answer.headers["Trident-Hint"] == "export it again"
    bench.engine.refusal = None
    assert bench.load("m").status_code == 200


def test_names_in_paths_cannot_leave_their_folder(bench: Bench) -> None:
    for name in ("..", "%2e%2e", "a%2Fb", "%00"):
        assert bench.open(f"/models/{name}").status_code == 404
        assert bench.open(f"/models/{name}", method="DELETE").status_code == 404


def test_ping_answers_200_without_any_model(bench: Bench) -> None:
    assert bench.open("/ping").status_code == 200
