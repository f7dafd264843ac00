"""Batching, queue policies and the forms of inputs.

Source: docs/spec/schedulers.md sections 3.1 and 3.2; docs/spec/model-config.md sections 2.3, 2.7 and 2.8;
docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPMessage
from select import select
from typing import Any, NamedTuple

import pytest

from tests.contract.servers.probe_site import PATIENCE_S, Client
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import raw_post
from tests.unit import onnx_models
from tests.unit.onnx_models import add_sub, identity, write_version
from tests.waiting import until

# The front ends share one engine, with its queues and batches.
pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

# The number of queued requests at which a model of the held server runs its first batch.
HELD = 4
ONE = "instance_group { kind: KIND_CPU count: 1 } "
PRIORITIES = ONE + "max_batch_size: 1 dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
# The first level has room for two requests, which wait until a request of the second one fills the batch.
FULL = (
    "max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 60000000 "
    "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 1 value { max_queue_size: 2 } } }"
)
OPTIONAL = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
input { name: "OFFSET" data_type: TYPE_FP32 dims: 4 optional: true }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
"""
RESHAPED = """
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }
"""


class Answer(NamedTuple):
    status: int
    headers: HTTPMessage
    document: dict[str, Any]

    def values(self, name: str) -> list[Any]:
        (output,) = [output for output in self.document["outputs"] if output["name"] == name]
        return list(output["data"])

    def shape(self, name: str) -> list[int]:
        (output,) = [output for output in self.document["outputs"] if output["name"] == name]
        return list(output["shape"])


Tensor = tuple[str, str, Sequence[int], Sequence[Any]]


def body_of(*tensors: Tensor, **parameters: Any) -> bytes:
    inputs = [
        {"name": name, "datatype": datatype, "shape": list(shape), "data": list(values)}
        for name, datatype, shape, values in tensors
    ]
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def ask(server: ServerProcess, model: str, body: bytes) -> Answer:
    status, headers, answer = server.request("POST", f"/v2/models/{model}/infer", body)
    return Answer(status, headers, json.loads(answer))


def ask_at_once(server: ServerProcess, model: str, bodies: Sequence[bytes]) -> list[Answer]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: ask(server, model, body), bodies))


def statistics(server: ServerProcess, model: str) -> dict[str, Any]:
    (entry,) = server.json("GET", f"/v2/models/{model}/stats")["model_stats"]
    return dict(entry)


def batches(server: ServerProcess, model: str) -> dict[int, int]:
    """The number of executions by batch size."""
    rows = statistics(server, model)["batch_stats"]
    return {row["batch_size"]: row["compute_infer"]["count"] for row in rows}


def pending(server: ServerProcess, model: str) -> int:
    _, _, page = server.request("GET", "/metrics", port=server.metrics_port)
    start = f'nv_inference_pending_request_count{{model="{model}"'
    return int(next(line for line in page.decode().splitlines() if line.startswith(start)).split()[1])


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose models run requests at once."""
    folder = tmp_path_factory.mktemp("forms")
    repository = folder / "models"
    full = "max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 1000000 "
    short = "default_queue_policy { default_timeout_microseconds: 50000 "
    write_version(add_sub(width=1), repository, "full", FULL)
    write_version(add_sub(width=1), repository, "late", full + short + "} }")
    override = "default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true } }"
    write_version(add_sub(width=1), repository, "own_time", full + override)
    write_version(onnx_models.with_default(), repository, "optional", OPTIONAL)
    write_version(identity("FP32", ("batch", 4)), repository, "reshaped", RESHAPED)
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


@pytest.fixture(scope="module")
def held_server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose models wait once until `HELD` requests are queued, so each test has its own model."""
    folder = tmp_path_factory.mktemp("held")
    repository = folder / "models"
    batching = "max_batch_size: 8 dynamic_batching { }"
    write_version(add_sub(width=1), repository, "batched", batching)
    write_version(onnx_models.picky(), repository, "picky", batching)
    write_version(onnx_models.slow(1024, 100), repository, "urgent", PRIORITIES)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # for this server only
            patch.setenv("TRITONSERVER_DELAY_SCHEDULER", str(HELD))
            running = stack.enter_context(ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0"))
        yield running


def pair(first: int, second: int, **parameters: Any) -> bytes:
    """A request to a model that adds and subtracts."""
    return body_of(("INPUT0", "INT32", (1, 1), [first]), ("INPUT1", "INT32", (1, 1), [second]), **parameters)


# --- batches


def test_four_clients_make_one_batch_and_get_their_own_answers(held_server: ServerProcess) -> None:
    answers = ask_at_once(held_server, "batched", [pair(10 * n, n) for n in range(HELD)])
    assert [answer.values("OUTPUT0") for answer in answers] == [[11 * n] for n in range(HELD)]
    assert [answer.values("OUTPUT1") for answer in answers] == [[9 * n] for n in range(HELD)]
    counted = statistics(held_server, "batched")
    assert (counted["inference_count"], counted["execution_count"]) == (HELD, 1)
    assert counted["inference_stats"]["success"]["count"] == HELD
    assert batches(held_server, "batched") == {HELD: 1}


def test_failing_request_does_not_fail_its_batch(held_server: ServerProcess) -> None:
    answers = ask_at_once(held_server, "picky", [body_of(("INDEX", "INT64", (1, 1), [n])) for n in (0, 1, 99, 3)])
    assert [answer.status for answer in answers] == [200, 200, 500, 200]
    assert [answer.values("VALUE") for n, answer in enumerate(answers) if n != 2] == [[0], [10], [30]]
    assert list(answers[2].document) == ["error"]
    counted = statistics(held_server, "picky")["inference_stats"]
    assert (counted["success"]["count"], counted["fail"]["count"]) == (3, 1)
    assert ask(held_server, "picky", body_of(("INDEX", "INT64", (1, 1), [2]))).values("VALUE") == [20]


def test_higher_priority_runs_first(held_server: ServerProcess) -> None:
    row = ("INPUT0", "FP32", (1, 1024), [1.0] * 1024)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(held_server.http_port)) for _ in range(HELD)]
        for number, client in enumerate(clients, 1):
            priority = {"priority": 1} if number == HELD else {}
            client.send(raw_post(body_of(row, **priority), path="/v2/models/urgent/infer"))
            until(lambda number=number: number == HELD or pending(held_server, "urgent") == number)
        first, _, _ = select([client.socket for client in clients], [], [], PATIENCE_S)
        assert clients[-1].socket in first
        assert [client.reply().status for client in clients] == [200] * HELD


# --- queue policies


def test_full_queue_refuses_with_retry_after(server: ServerProcess) -> None:
    with Client(server.http_port) as first, Client(server.http_port) as second:
        for number, client in enumerate((first, second)):
            client.send(raw_post(pair(number, 0), path="/v2/models/full/infer"))
        until(lambda: pending(server, "full") == 2)
        refused = ask(server, "full", pair(1, 1))
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert refused.document == {"error": "[request id: <id_unknown>] Exceeds maximum queue size"}
        six = [(name, "INT32", (6, 1), [0] * 6) for name in ("INPUT0", "INPUT1")]
        assert ask(server, "full", body_of(*six, priority=2)).status == 200
        assert [client.reply().status for client in (first, second)] == [200, 200]
    assert statistics(server, "full")["inference_stats"]["fail"]["count"] == 0
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    assert 'nv_inference_request_failure{model="full",reason="REJECTED",version="1"} 1\n' in page
    route = 'method="POST",route="/v2/models/<model>/infer",status="503"'
    assert f"\ntrident_http_errors_total{{{route}}} " in page


def test_request_is_refused_after_its_queue_timeout(server: ServerProcess) -> None:
    refused = ask(server, "late", pair(1, 1))
    assert (refused.status, refused.document) == (503, {"error": "Request timeout expired"})
    counted = statistics(server, "late")
    assert (counted["inference_count"], counted["inference_stats"]["fail"]["count"]) == (0, 1)


def test_timeout_of_a_request_shortens_the_models(server: ServerProcess) -> None:
    refused = ask(server, "own_time", pair(1, 1, timeout=1000))
    assert (refused.status, refused.document) == (503, {"error": "Request timeout expired"})
    assert ask(server, "own_time", pair(1, 1, timeout=90_000_000)).values("OUTPUT0") == [2]
    assert ask(server, "late", pair(1, 1, timeout=90_000_000)).status == 503


# --- forms of inputs


def test_optional_input_may_be_left_out(server: ServerProcess) -> None:
    given = ("INPUT0", "FP32", (4,), [1, 2, 3, 4])
    assert ask(server, "optional", body_of(given)).values("OUTPUT0") == [11, 22, 33, 44]
    both = body_of(given, ("OFFSET", "FP32", (4,), [1, 1, 1, 1]))
    assert ask(server, "optional", both).values("OUTPUT0") == [2, 3, 4, 5]
    refused = ask(server, "optional", body_of(("OFFSET", "FP32", (4,), [1, 1, 1, 1])))
    text = "expected number of inputs between 1 and 2 but got 1 inputs for model 'optional'. Got input(s) ['OFFSET'], "
    assert refused.status == 400
    assert text in refused.document["error"]


def test_reshaped_tensors_are_served(server: ServerProcess) -> None:
    answer = ask(server, "reshaped", body_of(("INPUT0", "FP32", (2, 2, 2), list(range(8)))))
    assert (answer.shape("OUTPUT0"), answer.values("OUTPUT0")) == ([2, 2, 2], list(range(8)))
    refused = ask(server, "reshaped", body_of(("INPUT0", "FP32", (2, 4), list(range(8)))))
    assert "unexpected shape for input 'INPUT0' for model 'reshaped'. Expected [-1,2,2]" in refused.document["error"]
