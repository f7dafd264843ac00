"""Sessions, on the WSGI application with real models, through the worker's bridge; without HTTP sockets.

The engine is in this process, or is reached as a front end reaches it.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
import pytest
from werkzeug.test import Client, TestResponse

from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.adapters.platform_bench import host_of
from tests.unit.onnx_serving import identity_config
from tests.waiting import until
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.sagemaker.invocations import CLOSED_SESSION_ID, CUSTOM_ATTRIBUTES, NEW_SESSION_ID, SESSION_ID
from trident.adapters.sagemaker.platform import SageMakerSettings
from trident.app.worker.worker import GeventLink
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.engine.protocol import Engine
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.front_end import HttpOptions
from trident.core.lifecycle.options import EngineOptions
from trident.core.remote.engine_client import RemoteEngine
from trident.core.remote.engine_server import EngineServer
from trident.tools.emulators.sagemaker.invocation import RESPONSE_HEADERS

LIMIT_S = 60.0
BOTH_SHAPES = pytest.mark.shapes("one-process", "front-ends")
CSV = "text/csv"
# A sequence may be idle for ten minutes.
ONE_SLOT = """
max_batch_size: 8 instance_group { count: 1 kind: KIND_CPU }
sequence_batching { max_sequence_idle_microseconds: 600000000 oldest { max_candidate_sequences: 1 } }
"""

Call = Callable[..., TestResponse]


class Platform:
    """Calls applications in greenlets of one hub, as the worker does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bridge = GeventBridge(gevent.get_hub())

    def calls(self, **settings: Any) -> Call:
        host = host_of(self.engine, HttpOptions(max_input_size=100 << 20), self.bridge)
        client = Client(SageMakerApplication(host, SageMakerSettings(**settings)))

        def call(path: str, **request: Any) -> TestResponse:
            answer: TestResponse = gevent.spawn(client.open, path, **request).get(timeout=LIMIT_S)
            return answer

        return call


def write_repository(folder: Path) -> None:
    onnx_models.write_version(onnx_models.identity("FP32", [3]), folder, "single", identity_config("FP32", [3], 0))
    shutil.copytree(ROOT / "deploy" / "examples" / "running_mean", folder / "running_mean")
    onnx_models.write_version(onnx_models.picky(), folder, "one_slot", ONE_SLOT)


@contextmanager
def at_a_distance(engine: InferenceEngine, path: Path) -> Iterator[RemoteEngine]:
    """The engine as a front end sees it, through the socket `path`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = EngineServer(engine, listener)
        server.start()
        remote = RemoteEngine(str(path), GeventLink(), 64 << 20)
        remote.start()
        try:
            until(remote.is_ready, sleep=gevent.sleep)
            yield remote
        finally:
            remote.close()
            server.stop()


@pytest.fixture(scope="module")
def platform(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    repository = tmp_path_factory.mktemp("repository")
    write_repository(repository)
    options = EngineOptions(
        repositories=(str(repository),),
        control_mode="explicit",
        load_models=("*",),
        cpu_metrics=False,
        gpu_metrics=False,
    )
    engine = make_engine(options)
    engine.start()
    try:
        assert engine.wait_loaded(LIMIT_S)
        with ExitStack() as stack:
            in_use: Engine = engine
            if http_workers != "0":
                in_use = stack.enter_context(at_a_distance(engine, tmp_path_factory.mktemp("socket") / "engine"))
            platform = Platform(in_use)
            stack.callback(platform.bridge.close)
            yield platform
    finally:
        engine.begin_exit()
        assert engine.finish(LIMIT_S)


class Caller:
    """Sends values to the model that answers each with the mean of all values of its sequence."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, values: str, session: str, attributes: str = "") -> TestResponse:
        headers = {"Accept": CSV, SESSION_ID: session, **({CUSTOM_ATTRIBUTES: attributes} if attributes else {})}
        return self._call("/invocations", method="POST", data=values, content_type=CSV, headers=headers)

    def opened(self, values: str) -> tuple[TestResponse, str]:
        answer = self(values, "NEW_SESSION")
        return answer, answer.headers[NEW_SESSION_ID].partition(";")[0]


@BOTH_SHAPES
def test_session_is_a_sequence_from_its_opening_to_its_closing(platform: Platform) -> None:
    caller = Caller(platform.calls(default_model="running_mean", session_expiration_s=90))
    first, session = caller.opened("3\n")
    assert first.data == b"3.0\n"
    assert RESPONSE_HEADERS[NEW_SESSION_ID].fullmatch(first.headers[NEW_SESSION_ID])
    expiry = datetime.fromisoformat(first.headers[NEW_SESSION_ID].partition("Expires=")[2])
    assert 60 < (expiry - datetime.now(UTC)).total_seconds() <= 91
    _, other = caller.opened("100\n")
    assert caller(b"9\n27\n", session).data == b"6.0\n13.0\n"
    last = caller("1\n", session, "sequence_end=true")
    assert (last.data, last.headers[CLOSED_SESSION_ID]) == (b"10.0\n", session)
    assert NEW_SESSION_ID not in last.headers
    assert caller("1\n", session).status_code == 400
    assert caller("50\n", other).data == b"75.0\n"


@BOTH_SHAPES
def test_failed_opening_creates_no_session(platform: Platform) -> None:
    caller = Caller(platform.calls(default_model="one_slot"))
    for values in ("99\n", "1\n99\n"):
        failed = caller(values, "NEW_SESSION")
        assert (failed.status_code, NEW_SESSION_ID in failed.headers) == (500, False)
    _, session = caller.opened("1\n")
    assert caller("99\n", session).status_code == 500  # which its client may try again
    assert caller("1\n", session, "sequence_end=true").status_code == 200


@pytest.mark.parametrize(
    ("session", "text"), [("nobody", "no session 'nobody'"), ("7b-1", "expired"), ("7b-fffffffff", "START")]
)
def test_request_of_no_session_is_refused(platform: Platform, session: str, text: str) -> None:
    answer = Caller(platform.calls(default_model="running_mean"))("1\n", session)
    assert answer.status_code == 400
    assert text in answer.get_data(as_text=True)


def test_session_of_a_request_and_its_sequence_id_exclude_each_other(platform: Platform) -> None:
    call = platform.calls(default_model="running_mean")
    tensor = {"name": "value", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    body = {"parameters": {"sequence_id": 5}, "inputs": [tensor]}
    answer = call("/invocations", method="POST", json=body, headers={SESSION_ID: "NEW_SESSION"})
    assert (answer.status_code, "sequence_id" in answer.get_data(as_text=True)) == (400, True)


def test_body_that_only_opens_a_session_is_refused_with_the_cure(platform: Platform) -> None:
    call = platform.calls(default_model="running_mean")
    body = {"requestType": "NEW_SESSION"}
    answer = call("/invocations", method="POST", json=body, headers={SESSION_ID: "NEW_SESSION"})
    assert (answer.status_code, "send the first inputs" in answer.get_data(as_text=True)) == (400, True)


@pytest.mark.parametrize(("model", "sessions", "opened"), [("single", None, 0), ("single", True, 1)])
def test_sessions_are_for_sequence_models_unless_configured_otherwise(
    platform: Platform, model: str, sessions: bool | None, opened: int
) -> None:
    call = platform.calls(default_model=model, sessions=sessions)
    answer = call("/invocations", method="POST", data="1,2,3\n", content_type=CSV, headers={SESSION_ID: "NEW_SESSION"})
    assert (answer.status_code, len(answer.headers.getlist(NEW_SESSION_ID))) == (200, opened)
