"""The payload log: its documents have the tensors as they were, and its queue delays nothing and is bounded.

Source: docs/payload-log.md, docs/spec/trace-and-log.md "In Trident".
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.interrupted import interrupted
from tests.waiting import until
from trident.core.errors import BackendFailed, RepositoryUnavailable
from trident.core.inference.pending_request import PendingRequest, deliver
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.response import (
    InferenceResponse,
    OutputTensor,
    PackedOutputs,
    ReceivedOutput,
    RegionInput,
    RegionReference,
    RegionRequest,
)
from trident.core.inference.tensors import BY_NAME, Array, bytes_array, layout_of, wire_bytes
from trident.core.observability.payload_log.destinations import Delivery, Objects, Refused
from trident.core.observability.payload_log.exchange import Exchange
from trident.core.observability.payload_log.log import MOST_WAITING, Ending, PayloadLog
from trident.core.observability.tracing.trace import Loss, TraceCounts
from trident.core.options import SECRETS, PayloadLogOptions

MIB = 1 << 20
LOG = "trident.payload-log"


def document(exchange: Exchange, redacted: Sequence[str] = ()) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(
        orjson.dumps(exchange.document(frozenset(redacted)), option=orjson.OPT_SERIALIZE_NUMPY)
    )
    return found


def content(entry: dict[str, Any]) -> bytes:
    """The elements of a tensor of the log in wire form, read as docs/payload-log.md says."""
    if "base64" in entry:
        return b64decode(entry["base64"], validate=True)
    if entry["datatype"] == "BYTES":
        return bytes(wire_bytes(bytes_array([each.encode() for each in entry["data"]], (len(entry["data"]),))))
    return np.array(entry["data"], BY_NAME[entry["datatype"]].dtype).tobytes()


def arrays() -> Iterator[tuple[str, Array]]:
    random = np.random.default_rng(5)
    for name, datatype in BY_NAME.items():
        if name == "BYTES":
            continue
        for count in (0, 1, 24, 5000):  # the last one is above what is written as numbers
            numbers = np.frombuffer(random.bytes(count * datatype.size), datatype.dtype)
            if name == "BOOL":
                numbers = np.frombuffer(random.bytes(count), np.uint8) % 2 == 1
            yield name, numbers  # of floating point, among them NaN and subnormal numbers
    yield "FP32", np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    yield "FP32", np.array([-0.0, 1e-45, 3.4028235e38, 1 / 3], np.float32)
    yield "FP64", np.array([-0.0, 5e-324, 1 / 3], np.float64)
    yield "BYTES", bytes_array([b"", "Grüße \0".encode(), b'"\\'], (3,))
    yield "BYTES", bytes_array([b"text", b"\xff\xfe"], (2,))


@pytest.mark.parametrize(("datatype", "array"), list(arrays()), ids=lambda each: each if isinstance(each, str) else "")
def test_tensors_are_kept_without_loss(datatype: str, array: Array) -> None:
    wire, shape = bytes(wire_bytes(array)), array.shape
    layout = layout_of([("T", datatype, shape, len(wire))])
    view = memoryview(wire)
    for inputs in (
        [InputTensor("T", datatype, shape, view)],
        [InputTensor("T", datatype, shape, array)],
        PackedInputs(layout, view),
    ):
        for outputs in (
            [OutputTensor("T", datatype, shape, array)],
            [ReceivedOutput("T", datatype, shape, view)],
            PackedOutputs(layout, view),
        ):
            exchange = Exchange(InferenceRequest("m", inputs), "m", 1, MIB)
            exchange.add(InferenceResponse("m", 1, outputs))
            found = document(exchange)
            for entry in (*found["request"]["inputs"], *found["responses"][0]["outputs"]):
                assert (entry["name"], entry["datatype"], tuple(entry["shape"])) == ("T", datatype, shape)
                assert content(entry) == wire


def test_copies_are_made_at_once() -> None:
    """The memory of a body, of a region or of a model is used again after the answer."""
    sent, made = np.array([1, 2], np.int32), np.array([3, 4], np.int32)
    exchange = Exchange(InferenceRequest("m", [InputTensor("IN", "INT32", (2,), sent)]), "m", 1, MIB)
    exchange.add(InferenceResponse("m", 1, [OutputTensor("OUT", "INT32", (2,), made)]))
    sent[:] = made[:] = 9
    found = document(exchange)
    assert found["request"]["inputs"][0]["data"] == [1, 2]
    assert found["responses"][0]["outputs"][0]["data"] == [3, 4]


def test_omitted_content_is_marked() -> None:
    strings = bytes_array([b"x" * 60, b"y" * 60], (2,))
    region = RegionInput("REGION", "INT32", (1,), RegionReference("r", 0, 4))
    asked = InferenceRequest(
        "m",
        [InputTensor("TEXT", "BYTES", (2,), strings), region],
        id="7",
        parameters={"Authorization": "Bearer s", "k": 1},
    )
    request = RegionRequest.of(asked, {"PLACED": RegionReference("r", 0, 4)})
    exchange = Exchange(request, "m", 3, 100)
    small, placed = (OutputTensor(name, "INT32", (1,), np.zeros(1, np.int32)) for name in ("OUT", "PLACED"))
    exchange.add(InferenceResponse("m", 3, [small, placed], final=False))
    large = OutputTensor("OUT", "UINT8", (200,), np.zeros(200, np.uint8))
    exchange.add(InferenceResponse("m", 3, [large], final=False))
    exchange.add(InferenceResponse("m", 3, [small], final=False))
    exchange.add(InferenceResponse("m", 3, []))

    found = document(exchange, sorted(SECRETS))
    assert found["request"]["inputs"] == [
        {"name": "TEXT", "datatype": "BYTES", "shape": [2], "left_out": "size"},
        {"name": "REGION", "datatype": "INT32", "shape": [1], "left_out": "shared_memory"},
    ]
    assert found["request"]["parameters"] == {"k": 1}
    assert found["request"]["redacted_parameters"] == ["Authorization"]
    first, *rest = found["responses"]
    assert [each.get("left_out", "") for each in first["outputs"]] == ["", "shared_memory"]
    assert rest == []
    assert found["responses_left_out"] == 2
    hidden = document(exchange, ["out"])["responses"][0]["outputs"][0]
    assert hidden == {"name": "OUT", "datatype": "INT32", "shape": [1], "left_out": "redacted"}


def test_invalid_input_is_recorded_as_received() -> None:
    wrong = {"INT32": b"abc", "BYTES": b"\xff", "BOOL": b"\1\2", "INT5": b"\1"}
    inputs = [InputTensor(name, name, (2,), memoryview(content)) for name, content in wrong.items()]
    exchange = Exchange(InferenceRequest("m", inputs), "m", 1, MIB)
    exchange.add(InferenceResponse.failed(InferenceRequest("m", []), BackendFailed("no \ud800")))
    found = document(exchange)
    assert [content(each) for each in found["request"]["inputs"]] == [*wrong.values()]
    assert found["responses"] == [{"error": "no ?"}]


class HeldDestination:
    """Takes nothing until it is released."""

    def __init__(self, counts: TraceCounts) -> None:
        self.counts = counts
        self.may_write = threading.Event()
        self.written: list[dict[str, Any]] = []

    def write(self, exchanges: Sequence[Exchange]) -> None:
        if exchanges:
            self.may_write.wait(60)
        self.written += [document(each) for each in exchanges]
        self.counts.add_written(len(exchanges))

    def close(self) -> None:
        """Nothing."""


@contextmanager
def held_log(**options: Any) -> Iterator[tuple[PayloadLog, HeldDestination]]:
    made: list[HeldDestination] = []

    def open_destination(counts: TraceCounts, ending: Ending) -> HeldDestination:
        made.append(HeldDestination(counts))
        return made[0]

    log = PayloadLog(PayloadLogOptions(target="somewhere", **options), open_destination)
    try:
        yield log, made[0]
    finally:
        made[0].may_write.set()
        log.close(30)


def ask(log: PayloadLog, size: int = 4, answer: int = 4) -> InferenceResponse:
    """A request and its answer, of so many bytes; returns what the caller got."""
    got: list[InferenceResponse] = []
    inputs = [InputTensor("IN", "UINT8", (size,), memoryview(bytes(size)))]
    pending = PendingRequest(InferenceRequest("m", inputs), got.append)
    log.begin(pending, "m", 1)
    deliver(pending, InferenceResponse("m", 1, [OutputTensor("OUT", "UINT8", (answer,), np.zeros(answer, np.uint8))]))
    (response,) = got
    return response


@pytest.mark.parametrize(("size", "answer"), [(MIB, 4), (4, MIB)], ids=["requests", "answers"])
def test_full_queue_drops_and_counts_records_without_delay(
    size: int, answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    with held_log() as (log, destination):
        room = MOST_WAITING // MIB
        for _ in range(room + 20):
            assert ask(log, size, answer).outputs
        lost = log.metrics().lost[Loss.QUEUE_FULL]
        assert 20 <= lost < room
        assert caplog.text.count("are missing in the payload log") == 1
        destination.may_write.set()
        until(lambda: log.metrics().written == room + 20 - lost)
        ask(log)  # what was written has made room
        until(lambda: log.metrics().written == room + 21 - lost)


def test_concurrently_taken_records_are_written_once_and_free_their_space() -> None:
    with held_log() as (log, held):
        other = HeldDestination(held.counts)
        other.may_write.set()
        held.may_write.set()
        for step in range(10_000):
            ask(log)
            ask(log)
            write = partial(log._write, other)
            is_amid = interrupted(write, write, step, lambda: bool(log._waiting))
            until(lambda: log._held == 0)
            if not is_amid:
                return


def test_small_requests_count_with_their_memory_overhead() -> None:
    with held_log() as (log, _):
        for _ in range(MOST_WAITING // 1024):
            ask(log)
        assert log.metrics().lost[Loss.QUEUE_FULL] > 0


def test_a_part_of_the_requests_is_sampled() -> None:
    with held_log(sample=0.0) as (log, destination):
        ask(log)
    assert destination.written == []
    with held_log(sample=0.5) as (log, destination):
        for _ in range(400):
            ask(log)
    assert 100 < len(destination.written) < 300


def test_requests_of_clients_are_recorded_once_and_those_of_models_never() -> None:
    class Nested(PendingRequest):
        is_nested = True

        __slots__ = ()

    with held_log() as (log, destination):
        pending = PendingRequest(InferenceRequest("m", []), lambda response: None)
        nested = Nested(InferenceRequest("m", []), lambda response: None)
        for version in (1, 2):  # it was passed on to the version that took the place of its own
            log.begin(pending, "m", version)
            log.begin(nested, "m", version)
        for each in (pending, nested):
            deliver(each, InferenceResponse("m", 2, []))
    assert [each["model_version"] for each in destination.written] == ["1"]


def test_a_response_that_cannot_be_recorded_is_answered() -> None:
    class Strange(OutputTensor):
        @property
        def array(self) -> Array:
            raise RuntimeError("no array")

    with held_log() as (log, _):
        got: list[InferenceResponse] = []
        pending = PendingRequest(InferenceRequest("m", []), got.append)
        log.begin(pending, "m", 1)
        deliver(pending, InferenceResponse("m", 1, [Strange("OUT", "INT32", (1,), np.zeros(1, np.int32))]))
        assert len(got) == 1
        assert log.metrics().lost[Loss.NOT_WRITTEN] == 1


def failing(reasons: list[Exception]) -> Callable[[str, bytes], None]:
    def put(name: str, content: bytes) -> None:
        if reasons:
            raise reasons.pop(0)

    return put


def test_upload_is_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    counts, ending = TraceCounts(), Ending()
    reasons: list[Exception] = [RepositoryUnavailable("down"), OSError("gone")]
    objects = Objects(PayloadLogOptions(target="s3://b/logs"), failing(reasons), counts, ending)
    objects.write([Exchange(InferenceRequest("m", []), "m", 1, 1)])
    caplog.set_level("INFO", LOG)
    objects.close()
    assert counts.metrics().written == 1
    assert caplog.text.count("cannot be written to s3://b/logs: down") == 1
    assert "is written to s3://b/logs again" in caplog.text


def test_shutdown_waits_a_limited_time_for_the_store() -> None:
    counts, ending = TraceCounts(), Ending()
    ending.begin(0.0)

    def send() -> None:
        raise OSError("gone")

    Delivery("s3://b", counts, ending).deliver(send, 3)
    assert counts.metrics().lost[Loss.NOT_WRITTEN] == 3


def test_refused_upload_is_not_retried() -> None:
    counts = TraceCounts()
    calls = []

    def send() -> None:
        calls.append(1)
        raise Refused("400")

    Delivery("http://c", counts, Ending()).deliver(send, 1)
    assert len(calls) == 1
    assert counts.metrics().lost[Loss.NOT_WRITTEN] == 1
