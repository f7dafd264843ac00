"""The engine of a server in one process, which starts before the modules in front of it are imported."""

from __future__ import annotations

from app.process.heap import use_one_heap
from app.settings.server import ServerSettings
from app.sites.engine_options import engine_options
from core.engine.in_process import InferenceEngine, make_engine

# Longer than the imports of a storage's client and a listing take; a slow storage is better waited for with imports.
_LISTING_S = 0.5


class EngineStart:
    """The engine, and why it cannot serve any more.

    Models are listed, downloaded and opened on native threads, most of the time without the interpreter's lock: on one
    core, while the modules of the worker and of the protocols are imported on the other. The client of a storage needs
    the interpreter to itself until it has listed its models; so the worker begins after that, unless the storage is
    slow. Made in the worker, after the fork.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.failure: str | None = None
        if settings.response_cache_bytes:
            use_one_heap()
        self.engine: InferenceEngine = make_engine(engine_options(settings), on_fatal=self.fail)
        self.engine.start()
        self.engine.wait_listed(_LISTING_S)

    def fail(self, reason: str) -> None:
        """End the whole server with `reason`, as `CODE - message`. Any thread."""
        self.failure = reason
