"""Several served engines and the pool of a front end before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.unit.core.remote.remote_parts import SHARED, served
from tests.waiting import until
from trident.core.remote.connection import ThreadLink
from trident.core.remote.engine_server import EngineServer
from trident.core.remote.pool import EnginePool


class Served:
    """An engine that can be taken away and brought back."""

    def __init__(self, folder: Path, engine: Any) -> None:
        folder.mkdir()
        self.engine = engine
        self.folder = folder
        self.path = str(folder / "engine.sock")
        self._stack = ExitStack()
        self.server: EngineServer

    def begin(self) -> None:
        _, self.server = self._stack.enter_context(served(self.folder, self.engine))

    def end(self) -> None:
        self._stack.close()


@contextmanager
def pooled(
    folder: Path, engines: Sequence[Any], *, keeps_answers: bool = False, by_model: bool = False, ready: bool = True
) -> Iterator[tuple[EnginePool, list[Served]]]:
    """The pool of a front end, and the engines behind it."""
    those = [Served(folder / str(index), engine) for index, engine in enumerate(engines)]
    for each in those:
        each.begin()
    pool = EnginePool(
        [each.path for each in those],
        ThreadLink,
        SHARED,
        folder / "changes",
        keeps_answers=keeps_answers,
        by_model=by_model,
    )
    pool.start()
    try:
        if ready:
            until(pool.is_ready, "not connected")
        yield pool, those
    finally:
        pool.close()
        for each in those:
            each.end()
