"""A model whose files are on the local disk, the large ones of them perhaps still being verified.

Hashing 1 GB takes more than a second of one core, and one hash cannot be divided. So a framework may open the files
meanwhile, as long as nothing is answered from them before `verify`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from core.repository.cache.snapshot import Snapshot


class Arrival:
    """A snapshot that is held until `release`; any thread."""

    def __init__(self, snapshot: Snapshot, download: Future[bool] | None = None) -> None:
        """`download`: what still verifies the files; its result is that of `verify`. None: they are verified."""
        self.snapshot = snapshot
        self._download = download

    @classmethod
    def of(cls, snapshot: Snapshot, download: Callable[[Callable[[], None]], bool]) -> Arrival:
        """Run `download` on a thread of its own until it calls its argument, when all bytes are there, or ends.

        Blocks. Raises what `download` raises before that; then the snapshot is released.
        """
        arrived = threading.Event()
        thread = ThreadPoolExecutor(1, "fetch")
        future = thread.submit(download, arrived.set)
        thread.shutdown(wait=False)
        future.add_done_callback(lambda _: arrived.set())
        arrived.wait()
        arrival = cls(snapshot, future)
        if future.done():
            try:
                future.result()
            except BaseException:
                arrival.release()
                raise
        return arrival

    def verify(self) -> bool:
        """Wait until all files are verified. False if one has arrived damaged and was replaced: open the files again.

        Raises RepositoryUnavailable if one cannot be had undamaged, or if the download was stopped.
        """
        return self._download is None or self._download.result()

    def verified(self) -> Snapshot:
        """The snapshot, after `verify`; it is released if that fails."""
        try:
            self.verify()
        except BaseException:
            self.release()
            raise
        return self.snapshot

    def release(self) -> None:
        """End this use of the snapshot, as soon as its files are verified; a second call does nothing."""
        if self._download is None:
            self.snapshot.release()
        else:
            self._download.add_done_callback(lambda _: self.snapshot.release())
