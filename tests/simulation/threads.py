"""Threads that are greenlets of one thread, a clock that stands still while one of them can run, and their choice.

The core gets these names where it says `threading` and `time`, so it runs as it is: a lock that is taken, a wait, and
the end of a wait are the points at which another thread may go on. Which one it is, a seeded generator draws.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty
from types import ModuleType, SimpleNamespace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

MS = 1_000_000
START_NS = 1_000 * MS
LAG_NS = 10 * MS
LONGEST = 50_000
"""Steps of threads in the longest schedule."""


class Stuck(Exception):
    """Every thread waits, and no time is ahead at which one of them would go on."""


class SimulatedThread(greenlet):
    """`threading.Thread`. Made anywhere in the simulation, it runs when it is drawn."""

    def __init__(
        self, group: None = None, target: Any = None, name: str = "", args: Iterable[Any] = (), daemon: bool = True
    ) -> None:
        super().__init__(self._body, parent=_present().hub)
        self.world = _present()
        self.target, self.args, self.name = target, tuple(args), name
        self.ident: int | None = None
        self.locals: dict[int, dict[str, object]] = {}
        self.wait_number = 0
        self.is_waiting = False
        self.has_ended = False
        self._joining: list[SimulatedThread] = []

    def start(self) -> None:
        self.world.begin(self)

    def is_alive(self) -> bool:
        return self.ident is not None and not self.has_ended

    def join(self, timeout: float | None = None) -> None:
        self.world.wait(self._joining, lambda: self.has_ended, timeout)

    def _body(self) -> None:
        try:
            self.target(*self.args)
        except GreenletExit:
            raise
        except Exception as error:
            self.world.problem("a thread died", f"{self.name}: {type(error).__name__}: {error}", error)
        finally:
            self.has_ended = True
            self.world.threads.discard(self)
            wake_all(self._joining)


class World:
    """One run. `point` is where another thread may go on; the clock moves on when none can, or sooner if it `lags`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        # The mean number of points between two at which another thread goes on, 0 for never.
        self._gap = self.random.choice((0.0, 1.5, 4.0, 20.0))
        # The probability that the clock moves on although a thread could run.
        self.lag = self.random.choice((0.0, 0.0, 0.0, 0.1))
        self.now_ns = START_NS
        self.hub = getcurrent()
        self.threads: set[SimulatedThread] = set()
        self.trace: list[tuple[object, ...]] = []
        self.problems: list[tuple[str, str, BaseException | None]] = []
        self.network: Any = None
        self.is_over = False
        self.executing = 0  # instances, and how many copies of a resource they hold
        self.held = 0
        self.before_advance: Callable[[int], None] = lambda until_ns: None
        self._runnable: list[SimulatedThread] = []
        # When it goes on, a number that orders equal times, the thread, and the number of its wait.
        self._times: list[tuple[int, int, SimulatedThread, int]] = []
        self._number = 0
        self._left = 0
        self._new_gap()

    # --- for what runs in it

    def note(self, *what: object) -> None:
        self.trace.append((self.now_ns, getattr(getcurrent(), "name", "-"), *what))

    def problem(self, name: str, text: str, error: BaseException | None = None) -> None:
        if self.is_over:
            return
        self.note("PROBLEM", name, text)
        self.problems.append((name, text, error))

    @property
    def current(self) -> SimulatedThread:
        thread = getcurrent()
        assert isinstance(thread, SimulatedThread), "only a simulated thread waits"
        return thread

    def sleep(self, duration_ns: int) -> None:
        self.block(self.now_ns + duration_ns)

    def point(self) -> None:
        """Let another thread go on, if that is drawn."""
        self._left -= 1
        if self._left <= 0:
            self._new_gap()
            thread = getcurrent()
            if isinstance(thread, SimulatedThread) and self._gap and not self.is_over:
                self._runnable.append(thread)
                self.hub.switch()

    def _new_gap(self) -> None:
        self._left = 1 + int(self.random.expovariate(1 / self._gap)) if self._gap else sys.maxsize

    # --- for the primitives

    def block(self, until_ns: int | None = None) -> None:
        """The present thread goes on when it is woken, at `until_ns` at the latest."""
        if self.is_over:
            raise GreenletExit
        thread = self.current
        thread.wait_number += 1
        thread.is_waiting = True
        if until_ns is not None:
            self._number += 1
            heapq.heappush(self._times, (until_ns, self._number, thread, thread.wait_number))
        self.hub.switch()

    def wake(self, thread: SimulatedThread) -> None:
        if thread.is_waiting:
            thread.is_waiting = False
            self._runnable.append(thread)

    def wait(self, waiting: list[SimulatedThread], is_over: Callable[[], bool], timeout: float | None) -> bool:
        """Block until `is_over`, which the thread that wakes `waiting` makes true, or for `timeout` seconds."""
        until_ns = None if timeout is None or timeout < 0 else self.now_ns + round(timeout * 1e9)
        while not is_over():
            if until_ns is not None and self.now_ns >= until_ns:
                return False
            thread = getcurrent()
            waiting.append(thread)
            self.block(until_ns)
            if thread in waiting:
                waiting.remove(thread)
        return True

    def begin(self, thread: SimulatedThread) -> None:
        self._number += 1
        thread.ident = self._number
        self.threads.add(thread)
        self._runnable.append(thread)

    # --- the run

    def run(self, main: Callable[[], None]) -> None:
        """Run `main` and all threads to their ends. Raises Stuck if they do not end."""
        self.begin(SimulatedThread(target=main, name="main"))
        runnable, draw = self._runnable, self.random.random
        for _ in range(LONGEST):
            if runnable and not (self.lag and draw() < self.lag):
                index = int(draw() * len(runnable)) if len(runnable) > 1 else 0
                thread = runnable[index]
                runnable[index] = runnable[-1]
                runnable.pop()
                thread.switch()
            elif not self._advance() and not runnable:
                break
            if self.problems:
                break
        else:
            self.problem("endless", ", ".join(sorted(thread.name for thread in {*runnable})))
        if self.threads and not self.problems:
            raise Stuck(", ".join(sorted(thread.name for thread in self.threads)))

    def _advance(self) -> bool:
        times = self._times
        while times and not self._is_due(times[0]):
            heapq.heappop(times)
        if not times:
            return False
        until_ns = times[0][0]
        if self._runnable and until_ns > self.now_ns + LAG_NS:
            return False
        if until_ns > self.now_ns:
            if not self.lag:
                self.before_advance(until_ns)
            self.now_ns = until_ns
        while times and times[0][0] <= until_ns:
            entry = heapq.heappop(times)
            if self._is_due(entry):
                self.wake(entry[2])
        return True

    @staticmethod
    def _is_due(entry: tuple[int, int, SimulatedThread, int]) -> bool:
        _, _, thread, number = entry
        return thread.is_waiting and thread.wait_number == number

    def end(self) -> None:
        """Give up the threads that have not ended, in an order that does not matter any more."""
        self.is_over = True
        for thread in list(self.threads):
            thread.is_waiting = False
            thread.throw()

    def text(self) -> str:
        """The trace, a line for each event, and the next number that would be drawn."""
        lines = [f"{(now - START_NS) / MS:9.3f} ms {' '.join(map(str, what))}" for now, *what in self.trace]
        return "\n".join([*lines, f"next draw {self.random.random()}"])


def wake_all(waiting: list[SimulatedThread]) -> None:
    for thread in waiting:
        thread.world.wake(thread)
    waiting.clear()


worlds: list[World] = []


def _present() -> World:
    return worlds[-1]


# --- the names of `threading` and `time`


class Lock:
    def __init__(self) -> None:
        self._is_held = False
        self._waiting: list[SimulatedThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            worlds[-1].point()
        if not self._is_held:
            self._is_held = True
            return True
        if not blocking or not worlds[-1].wait(self._waiting, lambda: not self._is_held, timeout):
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        if not self._is_held and not worlds[-1].is_over:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        wake_all(self._waiting)

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiting: list[SimulatedThread] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        is_woken = False
        thread = getcurrent()
        self._waiting.append(thread)
        self._lock.release()
        world = worlds[-1]
        world.block(None if timeout is None else world.now_ns + max(0, round(timeout * 1e9)))
        if thread in self._waiting:
            self._waiting.remove(thread)
        else:
            is_woken = True
        self._lock.acquire()
        return is_woken

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> Any:
        world = worlds[-1]
        until_ns = None if timeout is None else world.now_ns + max(0, round(timeout * 1e9))
        while not (result := predicate()):
            if until_ns is not None and world.now_ns >= until_ns:
                break
            self.wait(None if until_ns is None else (until_ns - world.now_ns) / 1e9)
        return result

    def notify(self, n: int = 1) -> None:
        woken, self._waiting[:n] = self._waiting[:n], []
        wake_all(woken)

    def notify_all(self) -> None:
        wake_all(self._waiting)


class Event:
    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[SimulatedThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        wake_all(self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        worlds[-1].point()
        return worlds[-1].wait(self._waiting, lambda: self._is_set, timeout)


class Local:
    """`threading.local`."""

    def _values(self) -> dict[str, object]:
        thread = getcurrent()
        return thread.locals.setdefault(id(self), {}) if isinstance(thread, SimulatedThread) else {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        self._values()[name] = value


class SimpleQueue:
    """`queue.SimpleQueue`. A `put` is not a point: the garbage collector may make it anywhere."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: list[SimulatedThread] = []

    def __class_getitem__(cls, item: object) -> type[SimpleQueue]:
        return cls

    def put(self, item: object) -> None:
        self._items.append(item)
        wake_all(self._waiting)

    def get(self, timeout: float | None = None) -> Any:
        if not worlds[-1].wait(self._waiting, lambda: bool(self._items), timeout):
            raise Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class Executor:
    """`concurrent.futures.ThreadPoolExecutor`, whose threads end when they have nothing to do."""

    def __init__(self, workers: int, name: str = "", thread_name_prefix: str = "") -> None:
        self._workers, self._name = workers, name or thread_name_prefix
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._threads: list[SimulatedThread] = []

    def submit(self, call: Callable[..., object], *args: object) -> None:
        self._calls.append((call, args))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < self._workers:
            thread = SimulatedThread(target=self._run, name=self._name)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._calls.clear()
        for thread in list(self._threads) if wait else ():
            thread.join()


def now_ns() -> int:
    return worlds[-1].now_ns


THREADING = SimpleNamespace(
    Condition=Condition,
    Event=Event,
    Lock=Lock,
    TIMEOUT_MAX=1e9,
    Thread=SimulatedThread,
    current_thread=getcurrent,
    get_ident=lambda: getattr(getcurrent(), "ident", 0),
    local=Local,
)
TIME = SimpleNamespace(
    monotonic=lambda: worlds[-1].now_ns / 1e9,
    monotonic_ns=now_ns,
    time=lambda: worlds[-1].now_ns / 1e9,
    time_ns=now_ns,
    sleep=lambda seconds: worlds[-1].sleep(round(seconds * 1e9)),
)


@contextmanager
def replaced(changes: Iterable[tuple[ModuleType | type, str, Any]]) -> Iterator[None]:
    """Other values for names of modules and classes, until the end."""
    before: list[tuple[ModuleType | type, str, Any]] = []
    try:
        for owner, name, value in changes:
            before.append((owner, name, vars(owner)[name]))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


@contextmanager
def present(world: World) -> Iterator[None]:
    """`world` is the one whose threads run."""
    worlds.append(world)
    try:
        yield
    finally:
        world.end()
        worlds.pop()
