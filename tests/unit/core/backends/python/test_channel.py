"""The channel to a stub process: whatever the process sends, a request gets its own outcome or an error.

The other end is a script on a real socket, which draws the frames from a seed: right ones, and each kind of wrong one.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.fuzzing import EXAMPLES, examples
from tests.unit.core.backends.python.test_batches import packed, spec
from tests.waiting import until
from trident.core.backends.python.batches import OutputCheck
from trident.core.backends.python.channel import FileWatcher, StubChannel, StubFaulty, StubGone, StubSilent
from trident.core.backends.python.process import ModelCalls, log_of
from trident.core.backends.python.stub.trident_stub.wire import (
    AGAIN,
    ANSWER,
    CALL,
    CREDIT,
    DROP,
    EMPTY,
    EXECUTE,
    FINAL,
    INFER,
    LATER,
    LOG,
    RELEASED,
    REPLY,
    RESPONSE,
    RESULT,
    STARTED,
    TAKEN,
    TO_STUB,
    WAITS,
    WATCH,
    KnownLayouts,
    Records,
    SentLayouts,
    from_json,
    read_count,
    read_record,
    to_json,
)
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.pending_request import AGAIN as GIVEN_BACK
from trident.core.inference.pending_request import LATER as ANSWERED_LATER
from trident.core.inference.request import InferenceRequest
from trident.core.interprocess.frames import FrameReader, frame
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.observability.metrics.custom_metrics import CustomMetrics

SEEDS = examples(300)


class Sender:
    """Records the responses to its request."""

    is_cancelled = False
    is_full = False

    def __init__(self) -> None:
        self.values: list[float] = []
        self.errors: list[ServerError] = []
        self.finals = 0
        self.changed: Callable[[], None] = lambda: None

    def send(self, outputs: Any, *, final: bool = False, error: Any = None, parameters: Any = None) -> None:
        if self.finals:
            return
        self.values += [output.array.item() for output in outputs or []]
        self.errors += [] if error is None else [error]
        self.finals += final

    def watch(self, callback: Callable[[], None]) -> None:
        self.changed = callback


class Stub:
    """The other end of a channel. It knows the value of each request by its number."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.memory = SharedMemory.create(1 << 20)
        self.lost: list[StubGone] = []
        self.channel = StubChannel(ours, self.memory, spec(), FileWatcher(), OutputCheck(spec()))
        self.channel.on_lost = self.lost.append
        placement = Placement("m_0", DeviceKind.CPU)
        ModelCalls(self.channel, log_of("m", "m_0"), None, CustomMetrics().owner(), "m", placement)
        self.values: dict[int, float] = {}
        self.numbers = SentLayouts()
        self._reader = FrameReader(TO_STUB, "the server")
        self._layouts = KnownLayouts()
        self._frames: list[tuple[int, int, memoryview]] = []

    def receive(self, kind: int) -> tuple[int, memoryview]:
        """The next frame of that type, its number and its content; the others are dropped."""
        while True:
            for index, (found, number, content) in enumerate(self._frames):
                if found == kind:
                    del self._frames[: index + 1]
                    return number, content
            received = self._reader.feed(self.socket.recv(1 << 16))
            self._frames += [(found, number, content) for found, _, _, number, content in received]

    def batch(self) -> tuple[int, list[int]]:
        """The number of the next batch, and those of its requests, whose values are noted."""
        number, content = self.receive(EXECUTE)
        count, at = self._layouts.read_head(content)
        requests = []
        for _ in range(count):
            record, at = read_record(content, at)
            self.values[record.number] = float(np.frombuffer(record.run, "<f4")[0])
            requests.append(record.number)
        return number, requests

    def records(self) -> Records:
        return Records(self.numbers, self.memory)

    def add(self, records: Records, number: int, flags: int = FINAL, of: int | None = None) -> None:
        """Add the record of request `number`, with its value or that of another one."""
        tensors = (("X", "FP32", (1, 1)),)
        layout = self.numbers.find(tensors) or self.numbers.add(tensors, tensors)
        value = self.values.get(number if of is None else of, -1.0)
        records.add(number, layout, [np.full((1, 1), value, np.float32).tobytes()], flags=flags)

    def frame(self, kind: int, number: int, records: Records) -> bytes:
        made = records.frame(kind, number)
        self.numbers.sent()
        return made

    def result(self, number: int, requests: list[int], flags: dict[int, int] | None = None) -> bytes:
        """The result of a batch. `flags` are those of requests without outputs."""
        records = self.records()
        for each in requests:
            if flags and each in flags:
                records.add_mark(each, flags[each])
            else:
                self.add(records, each)
        return self.frame(RESULT, number, records)

    def response(self, number: int, flags: int = 0, record_number: int | None = None) -> bytes:
        records = self.records()
        if flags & EMPTY:
            records.add_mark(number, flags)
        else:
            self.add(records, number if record_number is None else record_number, flags)
        return self.frame(RESPONSE, number, records)

    def close(self) -> None:
        self.channel.lose(BackendFailed("the process is gone"))
        self.socket.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.close()


def requests_with(*values: float) -> list[InferenceRequest]:
    return [InferenceRequest("m", packed(np.full((1, 1), value, np.float32))) for value in values]


class Execution:
    """A batch that a thread executes. `outcomes` are the values, errors and marks of its requests."""

    def __init__(self, stub: Stub, threads: ThreadPoolExecutor, values: list[float], limit_s: float | None = None):
        self.values = values
        self.senders = [Sender() for _ in values]
        self._future = threads.submit(
            stub.channel.execute, requests_with(*values), [1] * len(values), self.senders, limit_s
        )

    def result(self) -> list[Any]:
        return self._future.result(60)

    def check(self, changed: bool = False) -> None:
        """Each request has its own value, or an error, and exactly one end.

        `changed`: a byte was, so that a value may be none that was sent.
        """
        try:
            outcomes = self.result()
        except StubGone as gone:
            outcomes = [gone] * len(self.values)
        for value, sender, outcome in zip(self.values, self.senders, outcomes, strict=True):
            got = list(sender.values)
            if not isinstance(outcome, Exception) and outcome not in (ANSWERED_LATER, GIVEN_BACK):
                got += [output.array.item() for output in outcome]
            assert set(got) <= {value} or (changed and not any(each.is_integer() and each >= 1 for each in got))
            if outcome is ANSWERED_LATER:
                assert sender.finals == 1


# --- the wrong frames, each made for the open batch


def _swapped(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return stub.result(number, requests[::-1] if len(requests) > 1 else [requests[0] + 1])


def _shifted(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    shift = random.choice((-2, -1, 1, 2))
    return stub.result(max(1, number + shift), [max(1, each + shift) for each in requests])


def _too_few(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return stub.result(number, requests[1:] if random.random() < 0.5 else [*requests, requests[-1] + 1])


def _of_another(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return stub.response(requests[0], random.choice((0, FINAL)), record_number=requests[0] + random.choice((-1, 1)))


def _never_sent(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    kind = random.choice((WATCH, DROP, TAKEN, RESPONSE))
    far = requests[-1] + random.randrange(1, 1 << 40)
    return stub.response(far) if kind == RESPONSE else frame(kind, far)


def _unknown_layout(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    records = stub.records()
    for each in requests:
        records.add(each, (1 << random.randrange(3, 60), True), [bytes(4)], flags=FINAL)
    return stub.frame(RESULT, number, records)


def _layout_again(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    other = SentLayouts()
    tensors = (("Y", "FP32", (1, 1)),)
    other.add(tensors, tensors)
    return frame(RESPONSE, requests[0], (other.head(0),)) + frame(RESPONSE, requests[0], (other.head(0),))


def _cut(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    whole = stub.result(number, requests)
    return whole[: random.randrange(len(whole)) // 16 * 16 or 16] + frame(LOG, 0, (b"[1]",)) * 40


def _garbage(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return random.randbytes(random.randrange(16, 200)) + b"print"


def _wrong_kind(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return frame(random.choice((EXECUTE, REPLY, STARTED, 0, 255)), number, (b"[]",))


def _wrong_json(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    content = random.choice((b"", b"{", b"[1]", b"\xff", b"[0, 1, 2, 3]", b'{"a": 1}', b"1" * 5000, b"[" * 100_000))
    return frame(random.choice((LOG, CALL)), 1 << 50, (content,))


def _wrong_request(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return frame(INFER, 1, (random.randbytes(64),))


def _wrong_release(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return frame(RELEASED, random.randrange(1, 9), (random.randbytes(16),))


def _twice(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return stub.result(number, requests) * 2


def _unfinished(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    return stub.result(number, requests, {requests[0]: random.choice((0, WAITS))})


FAULTS = (
    _swapped,
    _shifted,
    _too_few,
    _of_another,
    _never_sent,
    _unknown_layout,
    _layout_again,
    _cut,
    _garbage,
    _wrong_kind,
    _wrong_json,
    _wrong_request,
    _wrong_release,
    _twice,
    _unfinished,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_frame_ends_the_process(fault: Callable[..., bytes], stub: Stub) -> None:
    with ThreadPoolExecutor(1) as threads:
        executed = Execution(stub, threads, [1.0, 2.0])
        number, requests = stub.batch()
        stub.socket.sendall(fault(stub, Random(1), number, requests) + stub.result(number, requests))
        executed.check()
        until(lambda: stub.channel.lost)
        with pytest.raises(StubFaulty):
            Execution(stub, threads, [3.0]).result()


def _changed(stub: Stub, random: Random, number: int, requests: list[int]) -> bytes:
    """A right result with one byte changed, outside of the values."""
    whole = bytearray(stub.result(number, requests))
    at = random.choice([at for at in range(len(whole)) if at < 32 or at >= len(whole) - 48 * len(requests)])
    values = b"".join(np.float32(stub.values[each]).tobytes() for each in requests)
    if whole[at] not in values:
        whole[at] ^= 1 << random.randrange(8)
    return bytes(whole)


@pytest.mark.parametrize("part", range(10))
def test_outcomes_are_not_mixed_up_between_requests(part: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "trident.backends.python")
    begin = Random().randrange(1 << 40) if EXAMPLES else 0
    with ThreadPoolExecutor(1) as threads:
        for seed in range(begin + part, begin + SEEDS, 10):
            try:
                play(seed, threads)
            except BaseException as error:
                error.add_note(f"the seed is {seed}")
                raise


def play(seed: int, threads: ThreadPoolExecutor) -> None:
    """Some batches, right answers of all kinds, and at last a wrong one."""
    random, stub = Random(seed), Stub()
    values = iter(random.sample(range(1, 1 << 23), 200))
    executions: list[Execution] = []
    later: list[int] = []
    fault = random.choice((*FAULTS, _changed))
    for is_last in [False] * random.randrange(6) + [True]:
        executed = Execution(stub, threads, [float(next(values)) for _ in range(random.randrange(1, 6))])
        executions.append(executed)
        number, requests = stub.batch()
        sent = b""
        if is_last:
            sent += fault(stub, random, number, requests)
        flags = {each: random.choice((LATER, LATER, AGAIN)) for each in requests if random.random() < 0.4}
        early = [each for each in requests if random.random() < 0.2]
        sent += b"".join([stub.response(each, random.choice((0, WAITS))) for each in early])
        sent += frame(LOG, 0, (to_json([0, "\ud800 ä", "model.py", 3]),))
        sent += stub.result(number, requests, flags)
        later += [each for each, flag in flags.items() if flag == LATER]
        random.shuffle(later)
        while later and random.random() < 0.6:
            sent += stub.response(later.pop(), random.choice((FINAL, FINAL | EMPTY)))
        sent += b"".join([stub.response(random.choice(requests)) for _ in range(random.randrange(3))])
        while sent:
            cut = random.randrange(1, len(sent) + 1)
            try:
                stub.socket.sendall(sent[:cut])
            except OSError:
                break
            sent = sent[cut:]
        if is_last:
            stub.socket.shutdown(socket.SHUT_WR)
        try:
            executed.result()
        except StubGone:
            break
    stub.close()
    for each in executions:
        each.check(changed=fault is _changed)


# --- single cases


def test_late_result_of_an_abandoned_batch_is_discarded(stub: Stub) -> None:
    with ThreadPoolExecutor(1) as threads:
        abandoned = Execution(stub, threads, [1.0], limit_s=0.01)
        with pytest.raises(StubSilent, match=r"it did not answer within 0\.01 s"):
            abandoned.result()
        stub.socket.sendall(stub.result(*stub.batch()))
        with pytest.raises(StubSilent):
            Execution(stub, threads, [2.0]).result()


def test_wrong_frame_between_executions_is_reported_with_the_reason(stub: Stub) -> None:
    with ThreadPoolExecutor(1) as threads:
        executed = Execution(stub, threads, [1.0])
        stub.socket.sendall(stub.result(*stub.batch()))
        assert executed.result()
    stub.socket.sendall(frame(LOG, 0, (b"\xff",)))
    until(lambda: stub.lost)
    assert "it sent a wrong frame: JSON that cannot be read" in str(stub.lost[0])


def test_credit_is_not_limited_to_a_byte(stub: Stub) -> None:
    with ThreadPoolExecutor(1) as threads:
        executed = Execution(stub, threads, [1.0])
        number, requests = stub.batch()
        (sender,) = executed.senders
        sender.is_full = True
        stub.socket.sendall(b"".join([stub.response(requests[0]) for _ in range(700)]))
        stub.socket.sendall(stub.result(number, requests, {requests[0]: LATER}))
        assert executed.result() == [ANSWERED_LATER]
        sender.is_full = False
        sender.changed()
        named, content = stub.receive(CREDIT)
        assert (named, read_count(content)) == (requests[0], 700)


def test_request_that_ended_before_its_result_is_not_opened_again(stub: Stub) -> None:
    with ThreadPoolExecutor(1) as threads:
        executed = Execution(stub, threads, [1.0])
        number, requests = stub.batch()
        stub.socket.sendall(stub.response(requests[0], FINAL) + stub.result(number, requests, {requests[0]: LATER}))
        executed.check()
    assert stub.channel._open == {}


def test_metric_call_is_answered_under_its_number(stub: Stub) -> None:
    with ThreadPoolExecutor(1) as threads:
        executed = Execution(stub, threads, [1.0])
        batch = stub.batch()
        fields = {"name": "calls_total", "description": "\ud800", "kind": "COUNTER"}
        stub.socket.sendall(frame(CALL, 7, (to_json(["metric_family", fields]),)) + stub.result(*batch))
        number, content = stub.receive(ANSWER)
        assert (number, list(from_json(content))) == (7, ["family"])
        assert executed.result()


def test_sender_that_raises_at_the_end_does_not_affect_others(stub: Stub) -> None:
    class Failing(Sender):
        def send(self, outputs: Any, **rest: Any) -> None:
            raise RuntimeError("no")

    with ThreadPoolExecutor(1) as threads:
        senders = [Failing(), Sender(), Sender()]
        executed = threads.submit(stub.channel.execute, requests_with(1, 2, 3), [1] * 3, senders, None)
        number, requests = stub.batch()
        stub.socket.sendall(stub.result(number, requests, dict.fromkeys(requests, LATER)))
        assert executed.result(60) == [ANSWERED_LATER] * 3
    stub.channel.lose(BackendFailed("gone"))
    assert [sender.finals for sender in senders] == [0, 1, 1]


def test_callback_that_raises_ends_the_process(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    def fail(flags: int, number: int, content: memoryview) -> None:
        raise KeyError("of the caller")

    stub.channel.listen({LOG: fail}, lambda: None)
    with ThreadPoolExecutor(1) as threads:
        executed = Execution(stub, threads, [1.0])
        number, requests = stub.batch()
        stub.socket.sendall(frame(LOG, 0) + stub.result(number, requests))
        with pytest.raises(StubFaulty, match="KeyError: 'of the caller'"):
            executed.result()
    assert "Traceback" in caplog.text


def test_writer_that_raises_ends_the_process(stub: Stub) -> None:
    def fail(records: Records) -> None:
        raise MemoryError("none left")

    done = threading.Thread(target=stub.channel.send_records, args=(REPLY, 1, fail))
    done.start()
    done.join()
    assert str(stub.lost[0]) == "its frames could not be handled: MemoryError: none left"
