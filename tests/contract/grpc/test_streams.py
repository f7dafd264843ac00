"""ModelStreamInfer: order, errors, ends and cancellation, in both shapes of the server.

Source: docs/spec/grpc.md sections 4 and 7.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.contract.grpc.grpc_requests import (
    LIMIT_S,
    Responses,
    assert_simple,
    client_of,
    simple_inputs,
    simple_message,
    stub_of,
    tensor,
    waiting_inputs,
)
from tests.contract.grpc.raw_connection import raw_connection
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.unit import onnx_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

ONE_INSTANCE = "instance_group [ { count: 1 kind: KIND_CPU } ]"
# Rounds of the model `waiting`: about half a second.
SOME = 300_000


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    repository = link_models(folder / "models", "simple", "identity_fp32")
    onnx_models.write_version(onnx_models.waiting(), repository, "waiting", ONE_INSTANCE)
    onnx_models.write_version(onnx_models.picky(), repository, "picky")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


def counted(server: ServerProcess, metric: str, **labels: str) -> float:
    """A metric of the model `waiting`."""
    wanted = "".join(f'{key}="{value}"' for key, value in labels.items())
    lines = [
        line
        for line in server.request("GET", "/metrics", port=server.metrics_port)[2].decode().splitlines()
        if line.startswith(metric) and 'model="waiting"' in line and wanted in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def picky_inputs(index: int) -> list[Any]:
    """For a model that has a table of four values, and fails as it runs if it is asked for another one."""
    return [tensor("INDEX", np.array([[index]], np.int64), "INT64")]


def test_responses_come_in_order_though_a_later_request_is_done_first(client: Any) -> None:
    responses = Responses()
    client.start_stream(responses.put)
    client.async_stream_infer("waiting", waiting_inputs(SOME), request_id="slow")
    client.async_stream_infer("simple", simple_inputs(), request_id="quick")
    assert [responses.next_result().get_response().id for _ in range(2)] == ["slow", "quick"]
    client.stop_stream()


def test_the_end_of_a_stream_is_ok_after_all_responses(server: ServerProcess) -> None:
    with stub_of(server) as stub:
        call = stub.ModelStreamInfer(iter([simple_message(id=str(number)) for number in range(50)]), timeout=LIMIT_S)
        assert [each.infer_response.id for each in call] == [str(number) for number in range(50)]
        assert call.code() is grpc.StatusCode.OK
        assert list(stub.ModelStreamInfer(iter([]), timeout=LIMIT_S)) == []


def test_the_messages_of_errors(server: ServerProcess) -> None:
    """Before it ran: the id alone. As it ran: with the model, the version as it was sent, and the final flag."""
    failing = simple_message(model_name="picky", model_version="1", id="failing")
    del failing.inputs[:], failing.raw_input_contents[:]
    failing.inputs.add(name="INDEX", datatype="INT64", shape=[1, 1])
    failing.raw_input_contents.append(np.array([9], np.int64).tobytes())
    requests = [simple_message(model_name="nope", id="unknown"), simple_message(id="good"), failing]
    requests[1].outputs.add(name="NOPE")
    with stub_of(server) as stub:
        unknown, good, failed = stub.ModelStreamInfer(iter(requests), timeout=LIMIT_S)
    assert unknown.error_message == "Request for unknown model: 'nope' is not found"
    assert unknown.infer_response.ListFields() == [(unknown.infer_response.DESCRIPTOR.fields_by_name["id"], "unknown")]
    assert good.error_message == "unexpected inference output 'NOPE' for model 'simple'"
    assert good.infer_response.id == "good"
    assert failed.error_message
    response = failed.infer_response
    assert (response.id, response.model_name, response.model_version) == ("failing", "picky", "1")
    assert response.parameters["triton_final_response"].bool_param is True


def test_with_triton_grpc_error_the_first_failure_ends_the_call(client: Any, server: ServerProcess) -> None:
    plain, strict = Responses(), Responses()
    client.start_stream(strict.put, headers={"triton_grpc_error": "true"})
    with client_of(server) as other:
        other.start_stream(plain.put)
        for responses, streaming in ((plain, other), (strict, client)):
            streaming.async_stream_infer("nope", simple_inputs())
            streaming.async_stream_infer("simple", simple_inputs())
            streaming.async_stream_infer("picky", picky_inputs(9))
            assert responses.next_error().message() == "Request for unknown model: 'nope' is not found"
            assert_simple(responses.next_result())
        assert plain.next_error().status() is None
        assert strict.next_error().status() == "StatusCode.INTERNAL"
        other.async_stream_infer("simple", simple_inputs(5))
        assert_simple(plain.next_result(), 5)
        other.stop_stream()
    client.stop_stream()


def test_a_cancelled_stream_cancels_each_of_its_requests(client: Any, server: ServerProcess) -> None:
    before = counted(server, "nv_inference_request_failure", reason="CANCELED")
    responses = Responses()
    client.start_stream(responses.put)
    for _ in range(30):
        client.async_stream_infer("waiting", waiting_inputs(SOME))
    until(lambda: counted(server, "nv_inference_pending_request_count") >= 25, server.log_text)
    client.stop_stream(cancel_requests=True)
    until(lambda: counted(server, "nv_inference_pending_request_count") == 0)
    cancelled = counted(server, "nv_inference_request_failure", reason="CANCELED") - before
    # Each runs for a second, and some may have run before the cancellation.
    assert 15 <= cancelled <= 30
    assert_simple(client.infer("simple", simple_inputs()))


def test_a_client_that_takes_no_answers_holds_up_nobody_but_itself(server: ServerProcess) -> None:
    request = simple_message(model_name="identity_fp32")
    del request.inputs[:], request.raw_input_contents[:]
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 500_000])
    request.raw_input_contents.append(np.ones(500_000, np.float32).tobytes())
    sent: list[int] = []

    def requests() -> Iterator[Any]:
        for number in range(200):
            sent.append(number)
            yield request

    with stub_of(server) as stub:
        # grpc's own flow control: nothing more is read before the iterator is asked for it.
        call = stub.ModelStreamInfer(requests(), timeout=LIMIT_S)
        next(call)
        with client_of(server) as client:
            for seed in range(100):
                assert_simple(client.infer("simple", simple_inputs(seed)), seed)
        assert len(sent) < 200
        assert sum(1 for _ in call) == 199
        assert call.code() is grpc.StatusCode.OK


def test_four_hundred_calls_are_cancelled_at_once(server: ServerProcess) -> None:
    with stub_of(server) as stub:
        request = simple_message(model_name="waiting")
        del request.inputs[:], request.raw_input_contents[:]
        request.inputs.add(name="ROUNDS", datatype="INT64", shape=[1])
        request.raw_input_contents.append(np.array([SOME], np.int64).tobytes())
        calls = [stub.ModelInfer.future(request, timeout=LIMIT_S) for _ in range(400)]
        until(lambda: counted(server, "nv_inference_pending_request_count") >= 90, server.log_text)
        for call in calls:
            call.cancel()
        until(lambda: counted(server, "nv_inference_pending_request_count") == 0, server.log_text)
        assert {call.code() for call in calls} <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.OK}
        response = stub.ModelInfer(simple_message(), timeout=LIMIT_S)
        assert response.model_name == "simple"


def test_a_deadline_that_is_shorter_than_the_queue(server: ServerProcess) -> None:
    before = counted(server, "nv_inference_request_failure", reason="CANCELED")
    with client_of(server) as client:
        running = Responses()
        client.async_infer("waiting", waiting_inputs(4 * SOME), running.put)
        until(lambda: counted(server, "nv_inference_exec_count") >= 0)
        late = [Responses() for _ in range(10)]
        for each in late:
            client.async_infer("waiting", waiting_inputs(SOME), each.put, client_timeout=0.2)
        for each in late:
            assert each.next_error().status() == "StatusCode.DEADLINE_EXCEEDED"
        until(lambda: counted(server, "nv_inference_request_failure", reason="CANCELED") - before >= 9)
        assert running.next_result().as_numpy("COUNT").tolist() == [4 * SOME]


@pytest.mark.parametrize("timeout", [b"1n", b"1u", b"3u"])
def test_a_deadline_that_has_passed_on_arrival_is_never_answered(server: ServerProcess, timeout: bytes) -> None:
    """Clients send whole milliseconds, and `1n` for a deadline that is already over."""
    calls = 50

    def executed() -> int:
        (entry,) = server.json("GET", "/v2/models/simple/stats")["model_stats"]
        return int(entry["inference_count"])

    before = executed()
    with raw_connection(server) as client:
        message = simple_message().SerializeToString()
        for number in range(calls):
            client.call(2 * number + 1, message, metadata=((b"grpc-timeout", timeout),))
            fields, content = client.answer()
            assert (fields[b"grpc-status"], fields[b"grpc-message"], content) == (b"4", b"Deadline Exceeded", b"")
        client.call(2 * calls + 1, message, metadata=((b"grpc-timeout", b"1M"),))
        assert client.answer()[0][b"grpc-status"] == b"0"
    assert executed() == before + 1


def in_threads(count: int, function: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            function(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failures == []


def test_many_streams_at_once_get_their_own_answers(server: ServerProcess) -> None:
    def stream(number: int) -> None:
        with client_of(server) as client:
            responses = Responses()
            client.start_stream(responses.put)
            for seed in range(number, number + 100):
                client.async_stream_infer("simple", simple_inputs(seed))
            for seed in range(number, number + 100):
                assert_simple(responses.next_result(), seed)
            client.stop_stream()

    in_threads(12, stream)
