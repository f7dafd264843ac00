"""A queue delay ends when every connection that calls the model waits, and not before; a parameter turns that off.

Source: docs/tuning.md, "When every client waits".
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection

import pytest

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import GOLDEN_MODELS, good_document

pytestmark = pytest.mark.shapes("one-process")

LIMIT_S = 60.0
# Longer than two requests take to be read, also on a busy machine; shorter than what makes callers settle later.
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 90000 }"
WAITS_OUT = 'parameters { key: "WAIT_OUT_QUEUE_DELAY" value { string_value: "true" } }'
MODELS = {"ends": BATCHING, "waits_out": f"{BATCHING} {WAITS_OUT}"}
TENSORS = "".join(f'input {{ name: "INPUT{n}" data_type: TYPE_INT32 dims: 16 }} ' for n in range(2)) + "".join(
    f'output {{ name: "OUTPUT{n}" data_type: TYPE_INT32 dims: 16 }} ' for n in range(2)
)
BODY = json.dumps(good_document() | {"parameters": {"timing": True}}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("callers")
    for name, batching in MODELS.items():
        shutil.copytree(GOLDEN_MODELS / "simple", folder / "m" / name)
        (folder / "m" / name / "config.pbtxt").write_text(
            f'backend: "onnxruntime" max_batch_size: 8 {TENSORS} {batching} instance_group {{ count: 1 }}'
        )
    with ServerProcess(folder / "m", folder / "log", "--response-timing=true") as server:
        yield server


def closed(connections: Sequence[HTTPConnection], model: str) -> list[tuple[str, int]]:
    """The reason and the size of the batch of one request on each connection, sent together."""
    for connection in connections:
        connection.request("POST", f"/v2/models/{model}/infer", BODY)
    answers = [json.loads(connection.getresponse().read())["parameters"] for connection in connections]
    return [(answer["timing_batch_close"], answer["timing_batch_size"]) for answer in answers]


def test_a_delay_ends_when_every_connection_waits(server: ServerProcess) -> None:
    first, second = (HTTPConnection(HOST, server.http_port, timeout=LIMIT_S) for _ in range(2))

    def until_closed(connections: Sequence[HTTPConnection]) -> None:
        limit = time.monotonic() + LIMIT_S
        while closed(connections, "ends") != [("callers", len(connections))] * len(connections):
            assert time.monotonic() < limit

    try:
        assert closed([first], "ends") == [("delay", 1)]  # others may come as it came
        until_closed([first, second])
        # The second connection could send a request at any time.
        assert closed([first], "ends") == [("delay", 1)]
        second.close()
        until_closed([first])
        (found,) = server.json("GET", "/v2/models/ends/stats")["model_stats"]
        assert found["batch_close_count"]["callers"] >= 2
    finally:
        first.close()
        second.close()


def test_a_delay_is_waited_out_where_the_configuration_says_so(server: ServerProcess) -> None:
    connection = HTTPConnection(HOST, server.http_port, timeout=LIMIT_S)
    try:
        end = time.monotonic() + 1.5  # callers have settled after one
        while time.monotonic() < end:
            assert closed([connection], "waits_out") == [("delay", 1)]
    finally:
        connection.close()
