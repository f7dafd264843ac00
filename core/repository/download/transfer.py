"""The transfer of one object from a storage into a partial file: read in parts, resumed after failures, verified."""

from __future__ import annotations

import threading

from core.errors import RepositoryUnavailable
from core.repository.download.backoff import Backoff, GivenUp
from core.repository.download.partial_file import PartialFile
from core.repository.download.progress import ModelDownload
from core.repository.download.request_slots import FetchSlots
from core.repository.download.verification import Verification
from core.repository.stores.object_store import Checksum, ObjectStore, StoredObject, TransientError


class Transfer:
    """The transfer of one object; several threads may run its tasks. Methods may raise GivenUp after `stop` is set."""

    def __init__(
        self,
        store: ObjectStore,
        wanted: StoredObject,
        partial: PartialFile,
        report: ModelDownload,
        backoff: Backoff,
        slots: FetchSlots,
        stop: threading.Event,
    ) -> None:
        self.wanted = wanted
        self.partial = partial
        self.verification = Verification(wanted, partial, self._ask, stop)
        self._store = store
        self._report = report
        self._backoff = backoff
        self._slots = slots
        self._stop = stop
        self._lock = threading.Lock()
        # If an earlier start fetched all parts, one task remains: the verification.
        self.tasks: list[int | None] = [*partial.unfinished()] or [None]
        self._left = len(self.tasks)
        report.have(partial.finished_bytes())

    def run(self, task: int | None) -> bool:
        """Run one of `tasks`. True for the last one: then all bytes are here, and `verification` can be concluded.

        Raises RepositoryUnavailable as the store does, and after too many failures without progress.
        """
        if task is not None:
            self._fetch(task)
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if not is_last:
            self.verification.advance()
        return is_last

    def _fetch(self, part: int) -> None:
        reached, stop = self.partial.range_of(part)
        failures = 0
        while reached < stop:
            begun = reached
            cause = TransientError("the body ended early")
            try:
                with self._slots.one():
                    for piece in self._store.read(self.wanted, begun, stop):
                        reached = self._keep(piece, reached, stop)
            except TransientError as error:
                cause = error
            if reached < stop:
                failures = 1 if reached > begun else failures + 1
                if failures >= self._backoff.attempts:
                    raise self._failure(part, reached, failures, cause) from cause
                self._report.retried()
                self._backoff.wait(failures, self._stop)
        self.partial.finish(part)

    def _keep(self, piece: bytes, reached: int, stop: int) -> int:
        """Write a piece and return where the next one begins."""
        if self._stop.is_set():
            raise GivenUp
        if reached + len(piece) > stop:
            raise TransientError("the storage sent more bytes than requested")
        self.partial.write(reached, piece)
        self._report.received(len(piece))
        return reached + len(piece)

    def _failure(self, part: int, reached: int, failures: int, cause: TransientError) -> RepositoryUnavailable:
        received = self.partial.finished_bytes() + reached - self.partial.range_of(part)[0]
        return RepositoryUnavailable(
            f"failed to download '{self.wanted.key}' from {self._store.location}: {received} of {self.wanted.size} "
            f"bytes arrived, then {failures} attempts failed without progress, the last one with: {cause}"
        )

    def _ask(self) -> Checksum | None:
        what = f"get the checksum of '{self.wanted.key}' from {self._store.location}"
        return self._backoff.call(lambda: self._store.checksum(self.wanted), what, self._stop)
