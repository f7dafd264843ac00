"""A process that fetches an object through the cache and holds it until its standard input ends.

Started by test_download_processes.py:
`python -m tests.contract.repository.download_child CACHE CONTENT LOG GATE HOLD_AT`.

CONTENT is the file that stands for the storage. LOG gets the size of each piece that is read, a line each. After
HOLD_AT bytes it reads on only when the file GATE is there.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trident.core.repository.cache import ModelCache
from trident.core.repository.download import Downloader
from trident.core.repository.progress import DownloadProgress
from trident.core.repository.stores.object_store import Checksum, StoredObject

PART_BYTES = 4 << 20
_PIECE = 1 << 20


class FileStore:
    """An object store of one file."""

    location = "file://storage"

    def __init__(self, content: Path, log: Path, gate: Path, hold_at: int) -> None:
        self._content = content
        self._log = log
        self._gate = gate
        self._hold_at = hold_at
        self._read = 0
        self._lock = threading.Lock()

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        yield StoredObject("m/1/model.onnx", self._content.stat().st_size, "1")

    def folders(self) -> Iterator[str]:
        yield "m"

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        with self._content.open("rb") as content:
            content.seek(start)
            while start < stop:
                self._wait()
                piece = content.read(min(_PIECE, stop - start))
                with self._log.open("a") as log:
                    log.write(f"{len(piece)}\n")
                yield piece
                start += len(piece)

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        return Checksum("sha256", hashlib.sha256(self._content.read_bytes()).hexdigest(), partial(hashlib.sha256))

    def _wait(self) -> None:
        with self._lock:
            self._read += _PIECE
            waits = self._read > self._hold_at
        until = time.monotonic() + 60
        while waits and not self._gate.exists():
            if time.monotonic() > until:
                os._exit(3)
            time.sleep(0.01)


def main(cache: str, content: str, log: str, gate: str, hold_at: str) -> None:
    store = FileStore(Path(content), Path(log), Path(gate), int(hold_at))
    downloader = Downloader(ModelCache(Path(cache)), DownloadProgress(), parallel=4, part_bytes=PART_BYTES)
    print("fetching", flush=True)
    snapshot = downloader.fetch(store, "m", 1, {"1/model.onnx": next(store.list())})
    print(hashlib.sha256((snapshot.path / "1" / "model.onnx").read_bytes()).hexdigest(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
