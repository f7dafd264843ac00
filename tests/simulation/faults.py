"""Faults that the simulation must find: each is one edit of a function of the core, made for a run only."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True)
class Fault:
    """In the function `where` (`module:Class.function`) the text `old` becomes `new`.

    `seeds` is the number of the seeds, from 0, within which it is found, in schedules of that shape.
    """

    name: str
    where: str
    old: str
    new: str
    seeds: int = 500
    shape: str = ""

    def changes(self) -> Iterator[tuple[ModuleType | type, str, object]]:
        """The owners of the function, its name, and the edited function. Raises ValueError if the text is not there."""
        module_name, _, path = self.where.partition(":")
        module = import_module(f"trident.core.{module_name}")
        owner: ModuleType | type = module
        *classes, name = path.split(".")
        for each in classes:
            owner = vars(owner)[each]
        found = vars(owner)[name]
        source = textwrap.dedent(inspect.getsource(found.fget if isinstance(found, property) else found))
        if source.count(self.old) != 1:
            raise ValueError(f"'{self.name}': the text occurs {source.count(self.old)} times in {self.where}")
        made: dict[str, object] = {}
        text = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        exec(compile(text, f"<{self.name}>", "exec"), vars(module), made)
        yield owner, name, made[name]
        if owner is module:
            for other in list(sys.modules.values()):
                # A module that must not be imported is None.
                if other is not module and isinstance(other, ModuleType) and vars(other).get(name) is found:
                    yield other, name, made[name]


FAULTS = (
    # Faults that the core has had.
    Fault(
        "a callback that raises keeps the others from theirs",
        "inference.pending_request:flush",
        "guarded(each, _FLUSH)",
        "each()",
    ),
    Fault(
        "a response callback that raises ends the thread",
        "inference.pending_request:deliver",
        "except BaseException:",
        "except ZeroDivisionError:",
    ),
    Fault(
        "a batch waits for sizes to which a request belonged that was cancelled",
        "scheduling.dynamic_batcher:DynamicBatcher._note_left",
        "if self._pool.delaying is not None:",
        "if False:",
        shape="queue",
    ),
    Fault(
        "a sender that the model dropped ends nothing",
        "scheduling.open_requests:RequestSender.__del__",
        "self._dropped.put(self._request)",
        "pass",
    ),
    Fault(
        "a part that raises in `submit` ends the submitting thread",
        "lifecycle.version:ModelVersion.submit",
        "except Exception as error:",
        "except LookupError as error:",
    ),
    Fault(
        "an instance is loaded with as many executions as the others had",
        "scheduling.rate_limiter:Reservation.__init__",
        "self.position = LOAD_EXECUTIONS * priority",
        "self.position = 0",
        1000,
    ),
    Fault(
        "a model that answers CANCELLED ends its sequence",
        "scheduling.sequence_batcher:SequenceScheduler.answered",
        "response.origin is Origin.CANCELLED",
        "response.error.code.name == 'CANCELLED'",
    ),
    Fault(
        "the responses of a decoupled step pass one another",
        "scheduling.ensemble:EnsembleScheduler.__init__",
        "self.preserves_order = context.preserves_order",
        "self.preserves_order = False",
        shape="ensemble",
    ),
    Fault(
        "a refusal is not flushed",
        "inference.pending_request:PendingRequest.refuse",
        "if self.flush is not None:",
        "if False:",
        1500,
        shape="cached",
    ),
    Fault(
        "a request that is cancelled while its steps wait is not flushed",
        "scheduling.ensemble:EnsembleRequest._cancel",
        "self.proceed()",
        "pass",
        shape="ensemble",
    ),
    # Others.
    Fault(
        "an execution of the rate limiter holds nothing",
        "scheduling.rate_limiter:ResourceGroup.free",
        "if reservation.state is HELD:",
        "if False:",
        shape="limited",
    ),
    Fault(
        "the turn of a reservation does not wake its instance",
        "scheduling.rate_limiter:Reservation.move",
        "if was_waiting:",
        "if False:",
        shape="limited",
    ),
    Fault(
        "answers of the cache outlive their version",
        "scheduling.response_cache:CachingScheduler._submit",
        "request_key(self._scope, pending.request)",
        "request_key(b'', pending.request)",
        2000,
        shape="cached",
    ),
    Fault(
        "requests that wait for the same answer are forgotten",
        "scheduling.response_cache:CachingScheduler._land",
        "followers = list(flight.followers)",
        "followers = list(flight.followers)[1:]",
        shape="cached",
    ),
    Fault(
        "a step of an ensemble counts as one request however many it has",
        "scheduling.ensemble:InFlightLimit.enter",
        "self._free[index] -= 1",
        "pass",
        shape="ensemble",
    ),
    Fault(
        "a version that is replaced refuses what it has",
        "lifecycle.version:ModelVersion._end_requests",
        "while not scheduler.drain(limit_s):",
        "while False:",
    ),
    Fault(
        "a frame that arrives in pieces loses its beginning",
        "interprocess.frames:FrameReader.feed",
        "self._parts.append(chunk)",
        "self._parts = [chunk]",
    ),
    Fault(
        "what a socket did not take at once is sent again from its beginning",
        "interprocess.frames:SendQueue._send",
        "self._unsent = memoryview(whole)[sent:]",
        "self._unsent = memoryview(whole)",
    ),
    Fault(
        "a response goes to the request with another number",
        "remote.connection:EngineConnection.read",
        "found = self._pending.get(number)",
        "found = self._pending.get(number ^ 1) or self._pending.get(number)",
    ),
    Fault(
        "the requests of a lost engine are forgotten",
        "remote.connection:EngineConnection.lose",
        "while self._pending:",
        "while False:",
    ),
    Fault(
        "acknowledgements of responses are not sent",
        "remote.connection:EngineConnection.flush",
        "if self._taken:",
        "if False:",
    ),
    Fault(
        "the rest of the queue wakes nobody",
        "scheduling.instance_pool:InstancePool.take",
        "if self.queue.size:",
        "if False:",
        shape="queue",
    ),
    Fault(
        "a request of higher priority does not form the batch again",
        "scheduling.queue:RequestQueue.is_last",
        "for level in reversed(self._levels):",
        "return True\n    for level in reversed(self._levels):",
        1000,
        shape="queue",
    ),
    Fault(
        "levels in the order in which they were first used",
        "scheduling.queue:RequestQueue._level",
        "insort(self._levels, level, key=_priority)",
        "self._levels.append(level)",
        shape="queue",
    ),
    Fault(
        "a sequence has two requests in flight",
        "scheduling.sequence_batcher:SequenceScheduler.submit",
        "if sequence.is_busy or",
        "if",
    ),
    Fault(
        "a slot is freed before the last request is answered",
        "scheduling.sequence_batcher:SequenceScheduler._admit_no_more",
        "del self._open[sequence.correlation_id]",
        "del self._open[sequence.correlation_id]\n        sequence.instance and sequence.instance.release(sequence)",
    ),
    Fault(
        "the order of responses has two deliverers",
        "scheduling.open_requests:ResponseOrder._go_on",
        "self._delivering = True",
        "pass",
        shape="queue",
    ),
    Fault(
        "the delay begins with the youngest request",
        "scheduling.batch_forming:form_batch",
        "oldest_ns = min(",
        "oldest_ns = max(",
        shape="queue",
    ),
    Fault(
        "a timeout is only noticed when a batch is formed",
        "scheduling.dynamic_batcher:DynamicBatcher._expire",
        "if not self._queue.delay_until:",
        "if False:",
        shape="queue",
    ),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
