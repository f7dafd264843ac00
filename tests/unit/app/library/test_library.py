"""`import trident`: the engine in the caller's process, functions as models, ports, and trident.testing.

Source: docs/library.md.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import CancelledError
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from werkzeug.test import EnvironBuilder, run_wsgi_app

import trident
import trident.testing
from tests.project import ROOT
from tests.waiting import until
from trident.app.library.functions import as_array
from trident.core.inference.tensors import BY_NAME

pytest_plugins = ["pytester"]

ROW = np.arange(16, dtype=np.int32)[None]
SEQUENCE = """
sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
}
"""

# What the functions share with the tests.
held = threading.Event()
sizes: list[int] = []


@trident.model(
    inputs={"TEXT": ("BYTES", [1])}, outputs={"UPPER": ("BYTES", [1]), "LENGTH": (np.int32, [1])}, max_batch_size=4
)
def upper(TEXT: Any) -> dict[str, Any]:
    """Refuses a number, and waits for `held` if asked to."""
    sizes.append(len(TEXT))
    if b"wait" in TEXT:
        held.wait(30)
    texts = [text.decode() for text in TEXT[:, 0]]
    if "1" in texts:
        raise ValueError("a number")
    if "2" in texts:
        raise trident.InvalidRequest("no twos")
    return {"UPPER": [[text.upper()] for text in texts], "LENGTH": [[len(text)] for text in texts]}


@trident.model(inputs={"N": ("INT32", [1])}, outputs={"I": ("INT32", [1])}, instances=2)
def count(N: Any) -> Iterator[Any]:
    """The numbers below N; fails at 5."""
    for number in range(int(N[0])):
        if number == 5:
            raise ValueError("five")
        yield [number]


total = 0.0


@trident.model(inputs={"X": ("FP32", [1])}, outputs={"SUM": ("FP32", [1])}, max_batch_size=1, config=SEQUENCE)
def running_sum(X: Any, START: Any) -> Any:
    global total
    total = float(X[0, 0]) + (0 if START[0, 0] else total)
    return [[total]]


@trident.model(inputs={"X": ("FP32", [2])}, outputs={"Y": ("FP32", [2])})
def wrong(X: Any) -> Any:
    return {"Z": X}


FUNCTIONS = [upper, count, running_sum, wrong]


@pytest.fixture(scope="module")
def server() -> Iterator[trident.Server]:
    with trident.Server(
        ROOT / "deploy" / "models", functions=FUNCTIONS, model_control_mode="explicit", load_model="*", console=True
    ) as running:
        yield running


@pytest.fixture
def simple(server: trident.Server) -> trident.Model:
    return server.model("simple")


def test_models_are_loaded_on_first_request() -> None:
    rows = {"INPUT0": [range(16)], "INPUT1": [range(16)]}
    with trident.Server(ROOT / "deploy" / "models", model_control_mode="demand") as running:
        assert running.index(ready_only=True) == []
        simple = running.model("simple")

        async def ask() -> list[int]:
            """The event loop goes on while the model is loaded."""
            answer = asyncio.ensure_future(simple.infer_async(rows))
            turns = 0
            while not answer.done():
                turns += 1
                await asyncio.sleep(0.001)
            assert turns > 1
            return list((await answer)["OUTPUT0"][0])

        assert asyncio.run(ask()) == [2 * number for number in range(16)]
        running.unload("simple")
        assert list(simple.infer(rows)["OUTPUT1"][0]) == [0] * 16
        running.unload("simple")
        with running.serve() as ports, urllib.request.urlopen(f"{ports.url}/v2/models/simple") as answer:
            assert json.load(answer)["versions"] == ["1"]


# --- public names


def test_the_public_names_are_these_and_documented() -> None:
    assert dir(trident) == trident.__all__ == sorted(trident.__all__)
    for name in trident.__all__:
        found = getattr(trident, name)
        assert name == "__version__" or inspect.getdoc(found), name
        methods = vars(found).items() if inspect.isclass(found) and found.__module__.startswith("trident.app") else ()
        bare = [each for each, value in methods if each[0] != "_" and callable(value) and not inspect.getdoc(value)]
        assert bare == [], name
    assert (ROOT / "trident" / "py.typed").exists()
    with pytest.raises(AttributeError, match="no attribute 'Servers'"):
        getattr(trident, "Servers")  # noqa: B009


@pytest.mark.slow
def test_library_imports_lazily_and_refuses_forked_processes() -> None:
    program = """if True:
        import os, sys, trident
        assert not {"numpy", "trident.core"} & set(sys.modules), "the import loads parts"
        with trident.Server("deploy/models", load_model="simple", model_control_mode="explicit") as server:
            model = server.model("simple")
            model.infer(INPUT0=[range(16)], INPUT1=[range(16)])
            assert not {"gevent", "gunicorn", "greenlet"} & set(sys.modules)
            assert not [each for each in range(3, 100) if "socket:" in os.path.realpath(f"/proc/self/fd/{each}")]
            if not os.fork():
                try:
                    model.infer()
                except trident.ServerStopping as error:
                    print(error, flush=True)
                server.close()
                os._exit(0)
            os.wait()
            print(model.is_ready())
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("this process was forked from the one that made the server")
    assert ended.stdout.endswith("True\n")


# --- inputs and outputs


def test_library_takes_and_returns_arrays(simple: trident.Model) -> None:
    answer = simple.infer(INPUT0=ROW, INPUT1=[[1] * 16])
    np.testing.assert_array_equal(answer["OUTPUT0"], ROW + 1)
    np.testing.assert_array_equal(answer["OUTPUT1"], ROW - 1)
    assert (answer.model_version, answer.id, answer.parameters) == (1, "", {})
    answer["OUTPUT0"][:] = 7  # it is the caller's
    one = simple.with_options(outputs=("OUTPUT1",), id="a").infer({"INPUT0": ROW, "INPUT1": ROW[:, ::-1]})
    assert (list(one), one.id) == (["OUTPUT1"], "a")
    classes = simple.with_options(outputs=("OUTPUT0",), classes=2).infer(INPUT0=ROW, INPUT1=ROW)
    assert classes["OUTPUT0"].tolist() == [[b"30:15", b"28:14"]]


def test_inputs_accept_str_and_bytes(server: trident.Server) -> None:
    for text in ([["é"], [b"b"]], np.array([["é"], ["b"]]), np.array([["é"], ["b"]], object)):
        answer = server.model("upper").infer(TEXT=text)
        assert answer["UPPER"].tolist() == [["É".encode()], [b"B"]]
        assert answer["LENGTH"].tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("value", "datatype", "problem"),
    [
        (np.zeros(2), "FP32", "is an array of FP64, expected FP32"),
        ([1.5], "INT32", "has values of type float64, expected INT32"),
        ([300], "UINT8", "is not a tensor of UINT8"),
        ([[1], [1, 2]], "FP32", "is not a tensor of FP32"),
        ([1], "BYTES", "has an element of type int, expected str or bytes"),
        ([1], "BOOL", "has values of type int64, expected BOOL"),
        ([1e39], "FP32", "is not a tensor of FP32: overflow"),
        (np.ma.array([1, 2], np.int32, mask=[0, 1]), "INT32", "has masked values"),
    ],
)
def test_a_wrong_value_is_named(value: Any, datatype: str, problem: str) -> None:
    with pytest.raises(trident.InvalidRequest, match=f"input 'X' {problem}"):
        as_array(value, BY_NAME[datatype], "input 'X'")


def test_errors_have_their_types(server: trident.Server, simple: trident.Model) -> None:
    with pytest.raises(trident.ModelNotFound):
        server.model("nothing").infer(X=[1])
    with pytest.raises(trident.InvalidRequest, match="unexpected inference input 'INPUT'") as caught:
        simple.infer(INPUT=ROW)
    assert caught.value.hint == "the inputs are: INPUT0, INPUT1"
    # A traceback shows the notes of an error.
    assert caught.value.__notes__ == ["hint: the inputs are: INPUT0, INPUT1"]
    with pytest.raises(trident.ModelNotFound) as unknown:
        server.model("simpel").infer({})
    assert unknown.value.__notes__ == ["hint: did you mean 'simple'?"]
    with pytest.raises(trident.InvalidRequest, match="unknown request option 'timeout'"):
        simple.with_options(**{"timeout": 1})
    with pytest.raises(trident.BackendFailed, match="'upper' failed: ValueError: a number"):
        server.model("upper").infer(TEXT=[["1"]])
    with pytest.raises(trident.InvalidRequest, match="no twos"):
        server.model("upper").infer(TEXT=[["2"]])
    with pytest.raises(trident.BackendFailed, match="wrong returned Z, expected a dict of Y"):
        server.model("wrong").infer(X=[1, 2])
    with pytest.raises(trident.ConfigInvalid, match="unknown option 'model_control'; did you mean model_control_mode"):
        trident.Server(model_control="explicit")
    with pytest.raises(trident.ConfigInvalid, match="model-control-mode"):
        trident.Server(model_control_mode="sometimes")


@pytest.mark.parametrize(
    ("option", "values"),
    {
        "outputs": ["OUTPUT0", (1,)],
        "classes": [-1, 1.0],
        "id": [5, "\ud800", None],
        "priority": [-1, 1 << 64, True],
        "timeout_s": [-1, float("nan"), float("inf"), "1"],
        "sequence_id": [-1, 1 << 64, 1.5, "\udfff"],
        "sequence_start": [1],
        "sequence_end": ["yes"],
        "parameters": [[], {1: 2}, {"a": None}, {"a": 1 << 64}, {"a": "\ud800"}, {"timeout": 5}, {"triton_a": 1}],
    }.items(),
)
def test_an_option_that_no_request_can_have_is_named(simple: trident.Model, option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(trident.InvalidRequest, match=f"'{option}' must be .*, got "):
            simple.with_options(**{option: value})


def test_functions_and_callers_share_no_writable_arrays() -> None:
    table = np.zeros(2, np.float32)
    vector: Any = {"inputs": {"X": ("FP32", [2])}, "outputs": {"Y": ("FP32", [2])}}

    @trident.model(**vector)
    def constant(X: Any) -> Any:
        return table

    @trident.model(**vector)
    def stream(X: Any) -> Iterator[Any]:
        yield table

    @trident.model(**vector)
    def same(X: Any) -> Any:
        return X

    @trident.model(**vector)
    def writes(X: Any) -> Any:
        X += 1
        return X

    with trident.Server(functions=[constant, stream, same, writes]) as running:
        given = np.ones(2, np.float32)
        for name in ("constant", "same"):
            running.model(name).infer(X=given)["Y"][:] = 5
        next(running.model("stream").stream(X=given))["Y"][:] = 5
        with pytest.raises(trident.BackendFailed, match="read-only"):
            running.model("writes").infer(X=given)
    assert (table.tolist(), given.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("ended"), KeyboardInterrupt()])
def test_any_exception_of_a_function_becomes_an_error(error: BaseException) -> None:
    @trident.model(inputs={"X": ("BOOL", [1])}, outputs={"Y": ("BOOL", [1])})
    def fail(X: Any) -> Any:
        if X[0]:
            raise error
        return X

    @trident.model(inputs={"X": ("BOOL", [1])}, outputs={"Y": ("BOOL", [1])})
    def stream(X: Any) -> Iterator[Any]:
        yield X
        raise error

    with trident.Server(functions=[fail, stream]) as running:
        name = type(error).__name__
        with pytest.raises(trident.BackendFailed, match=f"'fail' failed: {name}"):
            running.model("fail").submit(X=[True]).result(60)
        assert not running.model("fail").submit(X=[False]).result(60)["Y"][0]
        responses = running.model("stream").stream(X=[True])
        assert next(responses)["Y"][0]
        with pytest.raises(trident.BackendFailed, match=f"'stream' failed: {name}"):
            next(responses)


# --- several requests


def test_requests_of_threads_and_tasks_are_batched(server: trident.Server) -> None:
    model = server.model("upper")
    held.clear()
    sizes.clear()
    first = model.submit(TEXT=[["wait"]])
    until(lambda: 1 in sizes)
    sizes.clear()

    async def ask() -> list[trident.Outputs]:
        tasks = [asyncio.ensure_future(model.infer_async(TEXT=[[text]])) for text in "abc"]
        await asyncio.sleep(0)
        held.set()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(ask())
    assert [answer["UPPER"].item() for answer in answers] == [b"A", b"B", b"C"]
    assert sizes == [3]
    assert first.result(30)["LENGTH"].item() == 4


def test_request_may_time_out_or_be_cancelled(server: trident.Server) -> None:
    model = server.model("upper")
    held.clear()
    running = model.submit(TEXT=[["wait"]])
    with pytest.raises(trident.DeadlineExceeded, match=r"no answer after 0\.01 seconds"):
        model.with_options(timeout_s=0.01).infer(TEXT=[["a"]])
    queued = model.submit(TEXT=[["b"]])
    assert queued.cancel()
    with pytest.raises(CancelledError):
        queued.result()

    async def leave() -> None:
        with pytest.raises(trident.DeadlineExceeded):
            await model.with_options(timeout_s=0.01).infer_async(TEXT=[["c"]])
        task = asyncio.ensure_future(model.infer_async(TEXT=[["d"]]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    sizes.clear()
    held.set()
    running.result(30)
    assert model.infer(TEXT=[["e"]])["UPPER"].item() == b"E"
    assert sizes == [1]  # no cancelled request was executed


def test_a_stream_is_an_iterator_of_both_kinds(server: trident.Server) -> None:
    model = server.model("count")
    assert [answer["I"].item() for answer in model.stream(N=[4])] == [0, 1, 2, 3]

    async def take() -> list[int]:
        return [answer["I"].item() async for answer in model.stream(N=[4])]

    assert asyncio.run(take()) == [0, 1, 2, 3]
    failing = model.stream(N=[9])
    assert [next(failing)["I"].item() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(trident.BackendFailed, match="ValueError: five"):
        next(failing)
    with pytest.raises(trident.BackendFailed, match="expected a single response, got 4"):
        model.infer(N=[4])


def test_closing_a_stream_closes_its_generator(server: trident.Server) -> None:
    @trident.model(inputs={"N": ("INT32", [1])}, outputs={"I": ("INT32", [1])})
    def endless(N: Any) -> Iterator[Any]:
        try:
            while True:
                yield N
        finally:
            ended.set()

    ended = threading.Event()
    with trident.Server(functions=[endless], response_window_count=4) as own:
        with own.model("endless").stream(N=[3]) as stream:
            assert next(stream)["I"].item() == 3
            assert not ended.is_set()
        assert ended.wait(30)
        assert list(stream) == []
        ended.clear()
        assert next(own.model("endless").stream(N=[4]))["I"].item() == 4  # and nothing refers to it any more
        assert ended.wait(30)


def test_a_sequence_keeps_its_state(server: trident.Server) -> None:
    model = server.model("running_sum").with_options(sequence_id=7)
    assert model.with_options(sequence_start=True).infer(X=[[2]])["SUM"].item() == 2
    assert model.infer(X=[[3]])["SUM"].item() == 5
    assert model.with_options(sequence_end=True).infer(X=[[4]])["SUM"].item() == 9
    with pytest.raises(trident.InvalidRequest, match="sequence"):
        model.infer(X=[[1]])


# --- the server


def test_models_are_loaded_unloaded_and_described(server: trident.Server) -> None:
    digits = server.model("digits")
    assert digits.is_ready()
    server.unload("digits")
    with pytest.raises(trident.ModelNotFound):
        digits.infer()
    config = {**server.model("simple").config(), "name": "digits"}
    with pytest.raises(trident.ServerError):
        server.load("digits", config)
    server.load("digits")
    states = {each["name"]: each["state"] for each in server.index(ready_only=True)}
    assert states["digits"] == states["upper"] == "READY"
    assert digits.metadata()["platform"] == "onnxruntime_onnx"
    assert server.metadata()["version"] == trident.__version__
    before = digits.statistics()["inference_count"]
    (taken,) = digits.metadata()["inputs"]
    digits.infer({taken["name"]: np.zeros([1, *taken["shape"][1:]], BY_NAME[taken["datatype"]].dtype)})
    assert digits.statistics()["inference_count"] == before + 1
    assert "digits" in [each["name"] for each in server.statistics()]


def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    with pytest.raises(trident.ModelLoadFailed, match="broken"):
        trident.Server(tmp_path)
    with trident.Server(tmp_path, exit_on_error=False) as server:
        assert not server.is_ready()
    with pytest.raises(trident.ServerStopping, match="closed"):
        server.model("broken").infer()


def test_server_ports_answer_while_the_caller_runs(server: trident.Server) -> None:
    with server.serve(grpc_port=0, metrics_port=0) as ports:
        assert server.url == ports.url == f"http://127.0.0.1:{ports.http}"
        body = json.dumps({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}]})
        client = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=30)
        client.request("POST", "/v2/models/upper/infer", body)
        answer = json.loads(client.getresponse().read())
        assert answer["outputs"][0]["data"] == ["A"]
        client.request("GET", "/console")
        assert b"<html" in client.getresponse().read()
        client.close()
        with socket.create_connection(("127.0.0.1", ports.grpc), 30) as grpc:
            grpc.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            assert grpc.recv(9)[3] == 4  # its SETTINGS
        assert server.model("upper").infer(TEXT=[["b"]])["UPPER"].item() == b"B"
    # The same routes for a server of the caller's.
    parts, status, _ = run_wsgi_app(server.wsgi(), EnvironBuilder(path="/v2/models/upper").get_environ())
    assert (json.loads(b"".join(parts))["name"], status) == ("upper", "200 OK")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports.http), 5)
    assert not [
        each.name for each in threading.enumerate() if each.name.startswith(("trident-ports", "trident-blocking"))
    ]
    assert server.is_ready()


@pytest.mark.slow
def test_function_runs_in_its_own_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "functions_of_a_user.py").write_text(
        "import os, trident\n"
        "@trident.model(inputs={'X': ('FP32', [1])}, outputs={'Y': ('FP32', [1]), 'PROCESS': ('INT64', [1])},\n"
        "    max_batch_size=4, processes=1)\n"
        "def double(X):\n"
        "    if X[0, 0] < 0:\n"
        "        raise ValueError('negative')\n"
        "    return {'Y': 2 * X, 'PROCESS': [[os.getpid()]] * len(X)}\n"
        "@trident.model(inputs={'N': ('INT32', [1])}, outputs={'I': ('INT32', [1])}, processes=1)\n"
        "def counting(N):\n"
        "    yield from ({'I': [each]} for each in range(N[0]))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    functions = import_module("functions_of_a_user")

    with trident.Server(functions=[functions.double, functions.counting]) as server:
        model = server.model("double")
        answer = model.infer(X=[[1.5], [2]])
        assert answer["Y"].tolist() == [[3], [4]]
        assert answer["PROCESS"][0] != os.getpid()
        futures = [model.submit(X=[[each]]) for each in range(8)]
        assert [each.result(30)["Y"].item() for each in futures] == [0, 2, 4, 6, 8, 10, 12, 14]
        with pytest.raises(trident.BackendFailed, match="ValueError: negative"):
            model.infer(X=[[-1]])
        assert [each["I"].item() for each in server.model("counting").stream(N=[3])] == [0, 1, 2]
    with pytest.raises(trident.ConfigInvalid, match="cannot be found by another process"):
        trident.model(inputs={}, outputs={}, processes=2)(lambda: {})


# --- trident.testing


@pytest.mark.slow
def test_pytest_plugin_needs_one_line(pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\ntrident_repository = {ROOT / 'deploy' / 'models'}\naddopts = -p no:cacheprovider")
    pytester.makeconftest('pytest_plugins = ["trident.testing"]')
    pytester.makepyfile(
        """
        import urllib.request, pytest

        def test_model(trident_server):
            answer = trident_server.model("simple").infer(INPUT0=[range(16)], INPUT1=[[1] * 16])
            assert answer["OUTPUT0"].tolist() == [list(range(1, 17))]
            assert urllib.request.urlopen(trident_server.url + "/v2/health/ready").status == 200

        @pytest.mark.trident(model_control_mode="explicit", load_model="simple")
        def test_marked(trident_server):
            assert [each["name"] for each in trident_server.statistics()] == ["simple"]
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)


def test_recorded_golden_requests_pass_their_check(tmp_path: Path) -> None:
    @trident.model(
        inputs={"X": ("FP32", [-1]), "S": "BYTES"}, outputs={"Y": ("FP32", [-1]), "T": "BYTES"}, name="golden"
    )
    def echo(X: Any, S: Any) -> dict[str, Any]:
        return {"Y": X + offset, "T": S}

    offset = 0
    folder = tmp_path / "golden"
    with trident.Server(functions=[echo]) as server:
        model = server.model("golden")
        inputs = {"X": [0.1, float("nan"), float("-inf")], "S": ["é"]}
        file = trident.testing.record_golden(model, folder / "all.json", inputs, tolerance={"absolute": 0.01})
        with pytest.raises(trident.InvalidRequest, match="'S' has bytes that are not UTF-8"):
            trident.testing.record_golden(model, folder / "no.json", {**inputs, "S": [b"\xff"]})
    document = json.loads(file.read_text())
    assert document["response"]["outputs"][0]["data"][1:] == ["NaN", "-Infinity"]
    assert document["request"]["inputs"][1]["data"] == ["é"]
    assert [each.name for each in folder.iterdir()] == ["all.json"]
