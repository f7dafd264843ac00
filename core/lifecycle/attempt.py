"""The attempt to load a version: its current step, its cancellation, and its slot among the loads of the server.

What a load runs (a model's initialization, its warmup, its golden requests) may never end. So it runs on a thread of
its own, and whoever waits for it can be released: by a limit, an unload, newer files, or the exit of the server. What
runs in a process is killed then, and ONNX Runtime stops; anything else continues in the background, and is freed when
it returns.
Source: docs/spec/repository.md section 1.6.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from trident.core.borders import guarded, text_of
from trident.core.errors import BackendFailed, ModelLoadFailed, ServerError
from trident.core.observability.statistics import LONG_S
from trident.core.scheduling.context import Clock

_log = logging.getLogger("trident.lifecycle")

LIMIT = "--model-load-timeout-secs"


class LoadAttempt:
    """Any thread, except for `begin`, `settle`, which the thread of `run` calls, and `run`.

    `step` is what it does now, such as "golden request 'one.json'", and `since_ns` when that began. It is empty while
    nothing runs that may never end: while files are downloaded, and before and afterwards.
    """

    def __init__(self, model: str, clock: Clock = time.monotonic_ns) -> None:
        self._model = model
        self._clock = clock
        self._changed = threading.Condition()
        # --- guarded by the condition
        self.step = ""
        self.since_ns = 0
        self._because = ""
        self._is_settled = False
        self._is_done = False
        self._enders: list[Callable[[str], object]] = []

    def run(self, work: Callable[[], None], limit_s: float = 0) -> ServerError | None:
        """Run `work` on another thread, and wait until it returns or the attempt is ended. Returns why it failed.

        A step that takes `limit_s` seconds ends it, 0 for no limit.
        """
        failures: list[ServerError] = []

        def attempt() -> None:
            try:
                work()
            except ServerError as error:
                # With its traceback it would be a cycle around the session, which would hold weights and threads until
                # the garbage collector runs.
                failures.append(error.with_traceback(None))
            except BaseException as error:  # a bug of a backend is a failure of the version and must not end the server
                if not self._because:
                    _log.exception("loading '%s' failed", self._model)
                failures.append(BackendFailed(text_of(error)))
            with self._changed:
                self._is_done = True
                self._enders.clear()
                self._changed.notify_all()

        with self._changed:
            if self._because:
                return self._error()
            self._is_settled = self._is_done = False
        threading.Thread(target=attempt, name=f"trident-load-{self._model}", daemon=True).start()
        while not self._wait(limit_s):
            self.end(f"{self.step} took longer than {LIMIT} allows ({limit_s:g} s)")
        with self._changed:
            self.step = ""
            if self._because and not self._is_settled:
                return self._error()
        return failures[0] if failures else None

    def _wait(self, limit_s: float) -> bool:
        """Block until it is done or ended. False if its step takes too long."""
        with self._changed:
            while not (self._is_done or (self._because and not self._is_settled)):
                left_s = None
                if limit_s and self.step and not self._is_settled:
                    left_s = limit_s - (self._clock() - self.since_ns) / 1e9
                    if left_s <= 0:
                        return False
                self._changed.wait(left_s)
            return True

    @property
    def is_ended(self) -> bool:
        return bool(self._because)

    @property
    def is_long(self) -> bool:
        return bool(self.step) and self._clock() - self.since_ns >= LONG_S * 1e9

    def begin(self, step: str) -> None:
        """Note the step that begins now. Raises the error with which the attempt was ended."""
        with self._changed:
            if self._because:
                raise self._error()
            self.step, self.since_ns = step, self._clock()
            self._changed.notify_all()

    def settle(self) -> None:
        """Mark the attempt as succeeded: nothing can end it now. Raises the error with which it was ended."""
        with self._changed:
            if self._because:
                raise self._error()
            self._is_settled = True
            self.step = ""

    def watch(self, end: Callable[[str], object]) -> None:
        """Have `end` called with the reason if it is ended; now, if it was. It ends what the attempt waits for."""
        with self._changed:
            because = self._because
            if not because:
                self._enders.append(end)
        if because:
            end(because)

    def end(self, because: str) -> bool:
        """Make it fail now, or when it begins. Returns False if it has succeeded or been ended before."""
        with self._changed:
            if self._because or self._is_settled:
                return False
            self._because = because
            enders, self._enders = self._enders, []
            self._changed.notify_all()
        for each in enders:
            guarded(partial(each, because), f"the end of a load of model '{self._model}'")
        return True

    def _error(self) -> ServerError:
        return ModelLoadFailed(self._because, model=self._model)


class LoadSlots:
    """At most `limit` loads at once, those that wait for others not counted. Any thread."""

    def __init__(self, limit: int) -> None:
        self._changed = threading.Condition()
        # --- guarded by the condition
        self._free = max(1, limit)
        # The models that are being loaded, and for each the models for whose change it waits.
        self._loading: Counter[str] = Counter()
        self._waits: dict[str, Counter[str]] = {}

    @contextmanager
    def taken(self, model: str, attempt: LoadAttempt) -> Iterator[None]:
        """Context of the load of a version of `model`. Waits for a slot; an attempt that is ended needs none."""
        attempt.watch(self._look)
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0 or attempt.is_ended)
            slots = min(self._free, 1)
            self._free -= slots
            self._loading[model] += 1
        try:
            yield
        finally:
            with self._changed:
                self._loading[model] -= 1
                self._give_back(slots)

    def _look(self, because: str) -> None:
        with self._changed:
            self._changed.notify_all()

    def _give_back(self, slots: int) -> None:
        self._free += slots
        self._changed.notify_all()

    @contextmanager
    def released(self, asker: str, asked: str) -> Iterator[None]:
        """Context in which `asker` waits for a change of the model `asked`; the slot of its load is free meanwhile.

        Raises ModelLoadFailed if the change waits for the load of `asker`.
        """
        with self._changed:
            is_loading = self._loading[asker] > 0
            if is_loading:
                if self._waits_for(asked, asker):
                    raise ModelLoadFailed(
                        f"model '{asker}' cannot ask for '{asked}' while it is being loaded itself: each would wait "
                        "for the other",
                        hint="ask in `execute`, or let a client load the models one after the other",
                        model=asker,
                    )
                waits = self._waits.setdefault(asker, Counter())
                is_first = not waits
                waits[asked] += 1
                if is_first:
                    self._give_back(1)
        if not is_loading:
            yield
            return
        try:
            yield
        finally:
            with self._changed:
                waits[asked] -= 1
                if not +waits:
                    del self._waits[asker]
                    self._changed.wait_for(lambda: self._free > 0)
                    self._free -= 1

    def _waits_for(self, model: str, other: str) -> bool:
        return model == other or any(self._waits_for(each, other) for each in +self._waits.get(model, Counter()))
