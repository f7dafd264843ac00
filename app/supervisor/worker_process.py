"""A worker as the main process knows it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gunicorn.workers.workertmp import WorkerTmp

from app.process.garbage_collector import keep_memory_shared
from app.supervisor.stop_signals import note_stop_signals


class WorkerProcess:
    """What the arbiter needs to know of a worker. The worker itself is made in its own process, after the fork.

    So the main process, which only waits, has none of the modules that serve: 23 MB less of resident memory. But the
    `shared_modules` of `app` are imported before the fork: several workers then import them once and share the memory.
    """

    def __init__(self, age: int, ppid: int, sockets: list[Any], app: Any, timeout: float, cfg: Any, log: Any) -> None:
        for module in app.shared_modules:
            import_module(module)
        keep_memory_shared()
        self._app = app
        self._arguments = (age, ppid, sockets, app, timeout, cfg, log)
        self._worker: Any = None
        self.age = age
        self.pid: int | str = "[booting]"
        self.aborted = False
        self.tmp = WorkerTmp(cfg)

    @property
    def booted(self) -> bool:
        """Whether the worker can serve. It is asked in the worker's process, when that ends."""
        return self._worker is not None and self._worker.booted

    def init_process(self) -> None:
        """Make the worker in its own process, and serve until it ends with SystemExit."""
        note_stop_signals()
        self._app.begin()
        from app.worker.worker import TridentWorker

        self._worker = TridentWorker(*self._arguments)
        # The arbiter looks for the heartbeat in the file that both processes have.
        self._worker.tmp.close()
        self._worker.tmp = self.tmp
        self._worker.pid = self.pid
        self._worker.init_process()
