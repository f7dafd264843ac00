"""A scheduler that answers requests from the response cache, and has the others executed once.

Requests with the same key that arrive while the first of them is executed wait for its answer (a single flight).
Source: docs/spec/schedulers.md section 3.7.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from trident.core.borders import guarded
from trident.core.config.spec import ModelSpec
from trident.core.errors import RequestCancelled, ServerError
from trident.core.inference.pending_request import PendingRequest, Submits, deliver
from trident.core.inference.request import InferenceRequest, InferenceTimes, asks_for_times
from trident.core.inference.response import InferenceResponse, OnResponse, Origin
from trident.core.inference.tensors import TensorLayout
from trident.core.observability.switches import SWITCHES
from trident.core.response_cache.response_cache import CachedResponse, GiveUp, ResponseCache, request_key
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.open_requests import ResponseOrder
from trident.core.scheduling.queue import COUNTING, flush_callers, reason_of
from trident.core.scheduling.scheduler import Scheduler

_log = logging.getLogger("trident.scheduling")


class SingleFlight:
    """Takes the responses to the executed request in place of its caller, and passes them on at once.

    `on_response` is the caller's. `start_ns` is when the first of them came, `lookup_ns` how long it was looked up.
    `followers` wait for the answer, in the order in which they came; they are guarded by the scheduler's lock.
    `give_up` ends the look-up of the answer in another process, before the request is executed.
    """

    __slots__ = (
        "_count",
        "_first",
        "_scheduler",
        "followers",
        "give_up",
        "key",
        "lookup_ns",
        "on_response",
        "start_ns",
    )

    def __init__(self, scheduler: CachingScheduler, key: bytes, pending: PendingRequest, start_ns: int) -> None:
        self._scheduler = scheduler
        self.key = key
        self.start_ns = start_ns
        self.lookup_ns = 0
        self.give_up: GiveUp | None = None
        self.on_response: OnResponse = pending.on_response
        self.followers: dict[PendingRequest, None] = {}
        self._first: InferenceResponse | None = None
        # Responses before the final one.
        self._count = 0

    def respond(self, response: InferenceResponse) -> None:
        """A model may send its response and then an empty final one; any other number is not for the cache."""
        try:
            self.on_response(response)
        finally:
            if not response.final:
                self._first = self._first or response
                self._count += 1
            elif not self._count or response.error is not None:
                self._scheduler.land(self, response)
            else:
                is_single = self._count == 1 and not response.outputs
                self._scheduler.land(self, self._first if is_single else None)

    def leave(self, pending: PendingRequest) -> None:
        self._scheduler.leave(self, pending)


LARGE = 1 << 20
"""From this many bytes of inputs on the key is made on another thread: a digest of 16 MB takes about 20 ms."""


class CachingScheduler:
    """Implements Scheduler around another one, for models that answer each request once and the same way each time.

    Answers from this process are delivered on the submitting thread, those from another process on a thread of the
    cache, those of a flight on the thread that executed its first request. `model` is the version itself: requests that
    go on elsewhere are submitted to it again.
    With `preserve_ordering` an answer that is found waits for those of earlier requests.
    `scope` is the version's own part of the cache, which ends with `close`.
    """

    def __init__(
        self, context: SchedulingContext, scheduler: Scheduler, cache: ResponseCache, scope: bytes, model: Submits
    ) -> None:
        spec = context.spec
        self._scheduler = scheduler
        self.start, self.forget = scheduler.start, scheduler.forget
        self.add, self.remove = scheduler.add, scheduler.remove
        self._cache = cache
        self._order = ResponseOrder(self._pass_on) if spec.batching and spec.batching.preserve_ordering else None
        # The requests of the responses in `order`, until the final one of each.
        self._callers: dict[PendingRequest, OnResponse] = {}
        self.answers_at_once = None if cache.answers_later or self._order is not None else self._answer_at_once
        self._spec = spec
        self._may_expire = spec.batching is not None and spec.batching.may_expire
        self._statistics = context.statistics
        self._model = model
        self._clock = context.clock
        self._scope = scope
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._flights: dict[bytes, SingleFlight] = {}
        self._keys: dict[PendingRequest, bytes] = {}
        self._missed: dict[PendingRequest, SingleFlight] = {}
        self._waiting = 0
        self._threads: ThreadPoolExecutor | None = None
        # ---
        self._stopped = False

    @property
    def queued(self) -> int:
        return self._scheduler.queued + self._waiting

    @property
    def in_flight(self) -> int:
        return self._scheduler.in_flight

    def _answer_at_once(self, request: InferenceRequest, batch_size: int | None) -> InferenceResponse | None:
        """The answer to a validated request, if this process has it: on the calling thread, without a wait."""
        if self._stopped or request.nbytes >= LARGE:
            return None
        start_ns = self._clock()
        found = self._cache.get(request_key(self._scope, request))
        return None if found is None else self._hit(request, found, start_ns, batch_size, wants_times=False)

    def submit(self, pending: PendingRequest) -> None:
        """Answer from the cache, wait for the same request of another client, or have it executed. See Scheduler."""
        order = self._order
        if order is None or pending in self._callers:  # which is submitted again
            self._submit(pending)
            return
        self._callers[pending] = pending.on_response
        pending.on_response = partial(self._respond_in_order, order, pending)
        order.enter(pending)
        self._submit(pending)

    def _respond_in_order(self, order: ResponseOrder, pending: PendingRequest, response: InferenceResponse) -> None:
        """Of whatever answers: the cache, the request that another one waited for, or an execution."""
        if response.error is None or response.origin is Origin.FAILED:
            order.respond(pending, response)
        else:
            order.refuse(pending, response)

    def _pass_on(self, pending: PendingRequest, response: InferenceResponse) -> None:
        on_response = self._callers.pop(pending) if response.final else self._callers[pending]
        guarded(partial(on_response, response), "the response callback of a request")

    def _submit(self, pending: PendingRequest) -> None:
        if self._missed:
            missed = self._missed.pop(pending, None)
            if missed is not None:
                pending.start_ns = missed.start_ns
                self._execute(missed, pending)
                return
        if self._stopped:
            self._scheduler.submit(pending)  # which refuses it, or accepts it because another request waits for it
            return
        start_ns = self._clock()
        key = self._keys.pop(pending, None) if self._keys else None
        if key is None:
            if pending.request.nbytes >= LARGE:
                if not self._make_key_elsewhere(pending):
                    self._scheduler.submit(pending)
                return
            key = request_key(self._scope, pending.request)
        with self._lock:
            found = self._cache.get(key)
            flight = None
            if found is None:
                flight = self._flights.get(key)
                if flight is None:
                    flight = self._flights[key] = SingleFlight(self, key, pending, start_ns)
                elif not (pending.request.timeout_us or self._may_expire):
                    pending.enqueue_ns = self._clock()
                    flight.followers[pending] = None
                    self._waiting += 1
                    pending.on_cancel = flight.leave
                    return
                else:
                    # Its timeout passes in the queue, even while the other one is executed.
                    flight = None
        if found is not None:
            self._answer(pending, found, start_ns)
            if pending.defer is None or pending.flush is None:
                flush_callers((pending,))
            else:
                pending.defer(pending.flush)
            return
        if flight is None:
            self._count_miss(start_ns)
            self._scheduler.submit(pending)
        elif not (self._cache.answers_later and self._look_up(flight, pending)):
            self._execute(flight, pending)

    def _count_miss(self, start_ns: int) -> int:
        """Returns how long the look-up took which began at `start_ns`; 0 if that cannot be counted."""
        try:
            lookup_ns = self._clock() - start_ns
            self._statistics.record_cache_miss(lookup_ns)
        except Exception:
            _log.exception("%s failed unexpectedly", COUNTING)
            return 0
        return lookup_ns

    def _execute(self, flight: SingleFlight, pending: PendingRequest) -> None:
        flight.lookup_ns = self._count_miss(flight.start_ns)
        flight.on_response = pending.take_callback()
        pending.on_response = flight.respond
        try:
            self._scheduler.submit(pending)
        except BaseException:
            self._resubmit_all(self._land(flight))
            raise

    # --- look-ups in another process

    def _look_up(self, flight: SingleFlight, pending: PendingRequest) -> bool:
        """Have the answer looked for; `_note_found` goes on. False if the cache cannot be asked."""
        defer, pending.defer = pending.defer, None  # it belongs to the thread that submitted
        with self._lock:
            self._waiting += 1
        try:
            fault_of = partial(_fault_of, self._spec, pending.request)
            flight.give_up = self._cache.look_up(flight.key, fault_of, partial(self._note_found, flight, pending))
        except Exception:
            _log.exception("a look-up in the response cache failed unexpectedly")
        if flight.give_up is not None:
            return True
        pending.defer = defer
        with self._lock:
            self._waiting -= 1
        return False

    def _note_found(self, flight: SingleFlight, pending: PendingRequest, found: CachedResponse | None) -> None:
        """Continue with the result of a look-up, or None. On a thread of the cache, or on that of `stop`."""
        with self._lock:
            self._waiting -= 1
        if found is None:
            self._missed[pending] = flight
            self._submit_again(pending)
            if self._missed.pop(pending, None) is not None:  # another version took it
                self._resubmit_all(self._land(flight))
            return
        followers = self._land(flight)
        self._answer(pending, found, flight.start_ns)
        for follower in followers:
            self._answer(follower, found, follower.enqueue_ns)
        flush_callers((pending, *followers))

    # --- keys of large requests

    def _make_key_elsewhere(self, pending: PendingRequest) -> bool:
        """Submit `pending` again when its key is made. False if the scheduler was stopped meanwhile."""
        with self._lock:
            if self._stopped:
                return False
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, f"trident-cache-{self._spec.name}")
            self._threads.submit(self._make_key, pending)
            self._waiting += 1
            return True

    def _make_key(self, pending: PendingRequest) -> None:
        try:
            self._keys[pending] = request_key(self._scope, pending.request)
        except Exception as error:
            pending.fail(error)
            return
        finally:
            with self._lock:
                self._waiting -= 1
        self._submit_again(pending)
        self._keys.pop(pending, None)  # another version took it

    def _land(self, flight: SingleFlight) -> list[PendingRequest]:
        """End a flight, unless it has ended; returns the requests that waited for it."""
        with self._lock:
            if self._flights.get(flight.key) is flight:
                del self._flights[flight.key]
            followers = list(flight.followers)
            flight.followers.clear()
            self._waiting -= len(followers)
        for pending in followers:
            pending.on_cancel = None
        return followers

    def leave(self, flight: SingleFlight, pending: PendingRequest) -> None:
        """A request that waits for a flight was cancelled. Any thread."""
        with self._lock:
            if pending not in flight.followers:
                return
            del flight.followers[pending]
            self._waiting -= 1
        pending.on_cancel = None
        self._fail(pending, RequestCancelled("the client went away"), Origin.CANCELLED)
        flush_callers((pending,))

    def land(self, flight: SingleFlight, answer: InferenceResponse | None) -> None:
        """End the flight with `answer`, or None if the answer cannot be shared."""
        if answer is None:
            self._resubmit_all(self._land(flight))
            return
        if answer.error is not None:
            followers = self._land(flight)
            if answer.origin is Origin.FAILED:
                for pending in followers:
                    self._fail(pending, answer.error, Origin.FAILED)
                flush_callers(followers)
            else:  # that happened to this request alone: another attempt may succeed
                self._resubmit_all(followers)
            return
        cached = None
        try:
            start_ns = self._clock()
            if flight.followers or self._cache.holds(answer.nbytes):
                cached = CachedResponse.of(answer)
                if not self._stopped:
                    self._cache.put(flight.key, cached)
            now_ns = self._clock()
            self._statistics.record_cache_insertion(flight.lookup_ns, now_ns - start_ns, now_ns)
        except Exception:  # the waiting requests are executed themselves if there is no answer for them
            _log.exception("keeping a response in the cache failed unexpectedly")
        followers = self._land(flight)
        if cached is None:
            self._resubmit_all(followers)
            return
        for pending in followers:
            self._answer(pending, cached, pending.enqueue_ns)
        flush_callers(followers)

    def _answer(self, pending: PendingRequest, cached: CachedResponse, start_ns: int) -> None:
        if pending.cancelled:
            self._fail(pending, RequestCancelled("the client went away"), Origin.CANCELLED)
            return
        wants_times = pending.wants_times
        try:
            response = self._hit(pending.request, cached, start_ns, pending.batch_size, wants_times=wants_times)
        except Exception as error:
            pending.fail(error, Origin.FAILED)
        else:
            deliver(pending, response)

    def _hit(
        self,
        request: InferenceRequest,
        cached: CachedResponse,
        start_ns: int,
        batch_size: int | None,
        *,
        wants_times: bool,
    ) -> InferenceResponse:
        """The response with what is cached; counts the hit, which began at `start_ns`."""
        now_ns = self._clock()
        lookup_ns = now_ns - start_ns
        guarded(partial(self._statistics.record_cache_hit, request.id, lookup_ns, now_ns), COUNTING)
        response = cached.answer(request, self._spec.name, self._spec.version)
        if SWITCHES.times or wants_times:
            response.times = times = InferenceTimes(lookup_ns, 0, 0, 0, batch_size or 1)
            if SWITCHES.timing and asks_for_times(request):
                response.parameters = {**(response.parameters or {}), **times.parameters()}
        return response

    def _fail(self, pending: PendingRequest, error: ServerError, origin: Origin) -> None:
        reason = reason_of(origin)
        guarded(lambda: self._statistics.record_failure(pending, reason, self._clock(), error.message), COUNTING)
        deliver(pending, InferenceResponse.failed(pending.request, error, origin))

    def _resubmit_all(self, followers: list[PendingRequest]) -> None:
        for pending in followers:
            self._submit_again(pending)

    def _submit_again(self, pending: PendingRequest) -> None:
        """Submit a request on another thread than its caller's."""
        pending.defer = None  # it belongs to the caller's thread
        pending.submit_to(self._model)

    # --- the end

    def stop(self, *, accept_nested: bool = False) -> None:
        with self._lock:
            self._stopped = True
            flights = list(self._flights.values())
        for flight in flights:  # what was accepted is executed: the scheduler still takes it
            if flight.give_up is not None:
                guarded(flight.give_up, "ending a look-up in the response cache")
        self._scheduler.stop(accept_nested=accept_nested)

    def drain(self, timeout_s: float | None = None) -> bool:
        return self._scheduler.drain(timeout_s)

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        with self._lock:
            self._stopped = True
        ended = self._scheduler.close(timeout_s, because)
        if self._threads is not None:
            self._threads.shutdown(wait=timeout_s is None)
        self._cache.close_scope(self._scope)
        self.answers_at_once = None  # a method of this object: both would stay until the garbage collector runs
        return ended


def _fault_of(spec: ModelSpec, request: InferenceRequest, layout: TensorLayout) -> str:
    """Return why outputs of this layout cannot be the model's answer to the request; "" if they can."""
    for name, datatype, shape, _, _ in layout.entries:
        output = spec.outputs.get(name)
        if output is None or (request.outputs and name not in request.outputs):
            return "it has an output that was not asked for"
        dims = shape[1:] if spec.max_batch_size > 0 else shape
        if datatype != output.datatype.name or len(dims) != len(output.dims):
            return f"output '{name}' is not of the model's datatype and shape"
        if any(wanted not in (-1, dim) for dim, wanted in zip(dims, output.dims, strict=True)):
            return f"output '{name}' is not of the model's datatype and shape"
    return ""
