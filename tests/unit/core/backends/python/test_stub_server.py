"""The log, the metrics, and how much a response sender may send before some is taken."""

from __future__ import annotations

import gc
import inspect
import os
import socket
from typing import Any

import pytest
from trident_stub import server as metrics
from trident_stub.channel import Channel, SenderCredit
from trident_stub.model import TritonModelException
from trident_stub.server import Logger, Metric, MetricFamily, MetricKind
from trident_stub.wire import FIRST_CREDIT, FIRST_CREDIT_BYTES, LOG, WAITS

from tests.unit.core.backends.python.conftest import MemoryServer
from trident.core.interprocess.shared_memory import SharedMemory


def test_lines_have_the_place_that_wrote_them(memory_server: MemoryServer) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    line = frame.f_lineno
    Logger.log("a")
    Logger.log("b", Logger.VERBOSE)
    Logger.log(message="c", level=Logger.LogLevel.ERROR)
    Logger.log_info("d")
    Logger.log_warn("e")
    Logger.log_error("f")
    Logger.log_verbose("g")
    assert memory_server.lines == [
        (level, text, "test_stub_server.py", line + 1 + index)
        for index, (level, text) in enumerate(zip((0, 3, 2, 0, 1, 2, 3), "abcdefg", strict=True))
    ]


# --- metrics


@pytest.fixture(autouse=True)
def _family_and_metric(memory_server: MemoryServer) -> Any:
    memory_server.answers = {
        "metric_family": {"family": 3},
        "metric_create": {"metric": 4},
        "metric_value": {"value": 1.5},
    }
    yield
    gc.collect()
    metrics._gone.clear()


def metric(kind: MetricKind) -> Metric:
    return MetricFamily("f", "d", kind).Metric(buckets=[1] if kind is MetricFamily.HISTOGRAM else None)


def test_refusals_of_the_server_have_the_prefix(memory_server: MemoryServer) -> None:
    gauge = metric(MetricFamily.GAUGE)
    for verb, call in (("increment", lambda: gauge.increment(1)), ("set", lambda: gauge.set(1)), ("get", gauge.value)):
        memory_server.refusals[f"metric_{'value' if verb == 'get' else verb}"] = "why"
        with pytest.raises(TritonModelException, match=f"^Failed to {verb} metric value: why$"):
            call()


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("GAUGE", {"labels": [1]}, "Failed to create metric. Labels must be a dictionary."),
        ("COUNTER", {"buckets": (1,)}, "Failed to create metric. Buckets must be a list."),
        ("HISTOGRAM", {"buckets": (1,)}, "Failed to create metric. Buckets must be a list."),
    ],
)
def test_metrics_that_cannot_be_made(kind: str, arguments: dict[str, Any], text: str) -> None:
    family = MetricFamily("f", "d", MetricKind[kind])
    with pytest.raises(TritonModelException) as caught:
        family.Metric(**arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize("value", ["1", None, float("nan"), float("inf"), [1]])
def test_wrong_values(value: Any) -> None:
    with pytest.raises(TypeError, match="the value of a metric must be"):
        metric(MetricFamily.GAUGE).set(value)


# --- the channel


def test_what_is_sent_together_arrives_at_the_end() -> None:
    ours, theirs = socket.socketpair()
    memory = SharedMemory.create(1 << 16)
    channel = Channel(theirs, os.dup(memory.descriptor))
    ours.setblocking(False)
    with channel.together():
        channel.send(LOG, 0, b"[]")
        channel.send(LOG, 0, b"[]")
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    assert len(ours.recv(1000)) == 64
    channel.send(LOG, 0, b"[]")
    assert len(ours.recv(1000)) == 32
    ours.close()
    theirs.close()
    memory.close()


def test_a_sender_waits_after_so_many_responses() -> None:
    request = SenderCredit()
    assert [request.send(10) for _ in range(FIRST_CREDIT)] == [0] * (FIRST_CREDIT - 1) + [WAITS]
    assert not request.may_send
    request.take(1)
    assert request.may_send
    assert request.send(10) == WAITS


def test_a_sender_waits_after_so_many_bytes() -> None:
    request = SenderCredit()
    assert request.send(10) == 0
    assert request.send(FIRST_CREDIT_BYTES) == WAITS
    request.take(1)  # the small one
    assert not request.may_send
    request.take(1)
    assert request.may_send


def test_the_sender_of_a_cancelled_request_waits_for_nothing() -> None:
    request = SenderCredit()
    request.is_cancelled = True
    assert request.send(FIRST_CREDIT_BYTES) == 0
    assert request.may_send
