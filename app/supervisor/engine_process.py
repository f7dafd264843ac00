"""The process of the engine, from its start to its end.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from trident.app.process.environment import (
    EXIT_FAILED,
    EXIT_NOT_DRAINED,
    IdleTrim,
    keep_freed_memory,
    share_interpreter_lock,
    show_gpus,
)
from trident.app.process.files import PrivateDirectory
from trident.app.settings.server import ServerSettings
from trident.app.sites.engine_start import engine_options, make_metrics_log, watch_start
from trident.app.sites.site import ServerParts
from trident.app.supervisor.start import END_LOADS, STOP_ENGINE, FailureNote, gpus_of_engine
from trident.core.backends.cpu_budget import keep_to_share, pin_to_share
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.lifecycle.options import EnginePlace
from trident.core.observability.hardware import gpu_uuids
from trident.core.observability.log import reopen_log_if_asked
from trident.core.remote.changes import ControlLog, Restoration, own_changes
from trident.core.remote.engine_server import EngineServer

_log = logging.getLogger("trident.engine")

_TICK_S = 0.25
_BACKLOG = 128
_PR_SET_PDEATHSIG = 1
_ALONE = EnginePlace()
_NO_PARTS = ServerParts()


class EngineProcess:
    """One engine for all front ends, in its own process. Made and run on the main thread, right after the fork."""

    def __init__(
        self,
        settings: ServerSettings,
        directory: PrivateDirectory,
        parent: int,
        front_ends: int,
        failure_note: FailureNote,
        place: EnginePlace = _ALONE,
        parts: ServerParts = _NO_PARTS,
    ) -> None:
        """`failure_note` gets the reason if the server cannot serve; the parent prints it. `place` is that of the
        engine among those of the server.
        """
        self._place = place
        self._parts = parts
        self._is_one_of_many = place.count > 1
        # The engine of this place has served, if there is this file: then others serve when it cannot.
        self._served = directory.path / f"served-{place.index}"
        self._settings = settings
        self._failure_note = failure_note
        self._front_ends = front_ends
        self._directory = directory
        self._parent = parent
        # A queue, because a signal may arrive while the main thread holds the lock of an event.
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._is_stopping = False
        self._failure = ""
        self._restored = threading.Event()

    def run(self) -> int:
        """Serve until the parent stops it or ends. Returns the exit status."""
        signal.signal(STOP_ENGINE, lambda *_: self._signals.put(STOP_ENGINE))
        signal.signal(END_LOADS, lambda *_: self._signals.put(END_LOADS))
        # Ask the kernel, if it can, to stop this process when the parent ends: sooner than checking the parent's pid.
        library = ctypes.CDLL(None)
        if hasattr(library, "prctl"):
            library.prctl(_PR_SET_PDEATHSIG, STOP_ENGINE)
        keep_freed_memory()
        share_interpreter_lock()
        if self._is_one_of_many:
            keep_to_share(self._place.count)
            if self._settings.pin_engines:
                pin_to_share(self._place.index, self._place.count)
            gpus = gpus_of_engine(self._place, gpu_uuids(self._settings.visible_gpus))
            if gpus is not None:  # before CUDA is loaded
                show_gpus(gpus)
                self._settings = replace(self._settings, visible_gpus=gpus)
        tempfile.tempdir = str(self._directory.new_files(self._place.index))
        control_log = ControlLog(self._directory.changes)
        # Without the models that were unloaded by request from an earlier engine.
        unloaded = control_log.unloaded()
        options = engine_options(self._settings, self._place)
        options = replace(options, load_models=tuple(name for name in options.load_models if name not in unloaded))
        engine = make_engine(options, self._fail, self._parts.makers)
        engine.make_mailbox = None  # front ends wait, this process must not
        # The shared control log and this engine's own.
        logs = [ControlLog(self._directory.changes)]
        if self._settings.multi_model:
            logs.append(ControlLog(own_changes(self._directory.changes, self._place.index)))
        restorations = [Restoration(engine, each) for each in logs]
        for restoration in restorations:
            restoration.repeat(of_models=False)
        path = self._directory.socket_of(self._place.index)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        server = EngineServer(
            self._parts.around(engine),
            listener,
            # Where there is a pool of engines, the front end that had them make a change notes it.
            on_change=None if self._is_one_of_many or self._settings.multi_model else control_log.note,
            is_restoring=lambda: not self._restored.is_set(),
            expected=self._front_ends,
        )
        server.start()
        engine.start()
        watch_start(self._settings, engine, self._fail, reports=not self._place.index, on_success=self._served.touch)
        metrics_log = make_metrics_log(self._settings, engine)
        if metrics_log is not None:
            metrics_log.start()
        restore = partial(self._restore, engine, server, restorations)
        threading.Thread(target=restore, name="trident-restore", daemon=True).start()
        self._wait(engine, server)
        if not self._is_stopping:
            self._begin_exit(engine, server)
        if metrics_log is not None:
            metrics_log.close()
        drained = engine.finish(self._settings.exit_timeout_secs)
        server.stop()
        self._directory.remove_if_orphaned()
        if self._failure:
            return EXIT_FAILED if self._is_fatal else EXIT_NOT_DRAINED
        return 0 if drained else EXIT_NOT_DRAINED

    def _wait(self, engine: InferenceEngine, server: EngineServer) -> None:
        def release_memory() -> None:
            server.release_memory()
            engine.release_memory()

        trim = IdleTrim(release_memory)
        while True:
            with suppress(Empty):
                if self._signals.get(timeout=_TICK_S) == STOP_ENGINE:
                    return
                self._begin_exit(engine, server)
            trim.tick(time.monotonic(), server.last_work)
            reopen_log_if_asked()
            if self._failure:
                if self._is_fatal:
                    self._failure_note.write(self._failure)
                else:
                    _log.error("%s: the other engines serve on", self._failure)
                return
            if os.getppid() != self._parent:
                _log.error("the main process has ended: the engine stops")
                return

    def _begin_exit(self, engine: InferenceEngine, server: EngineServer) -> None:
        self._is_stopping = True
        engine.begin_exit()
        server.push_state()

    def _restore(self, engine: InferenceEngine, server: EngineServer, restorations: Sequence[Restoration]) -> None:
        """Repeat the changes that clients requested in the last engine or in the others. On a thread."""
        try:
            is_needed = self._is_one_of_many or any(each.is_needed for each in restorations)
            while is_needed and not engine.wait_loaded(_TICK_S):
                if self._is_stopping:
                    return
            for restoration in restorations:
                restoration.repeat(of_models=True, is_stopping=lambda: self._is_stopping)
            if not self._is_one_of_many:
                return
            while server.is_gathering and not self._is_stopping:
                time.sleep(_TICK_S)
            # A change that a front end made before it had found this engine.
            for restoration in restorations:
                for of_models in (False, True):
                    restoration.repeat(of_models=of_models, is_stopping=lambda: self._is_stopping)
        finally:
            self._restored.set()

    @property
    def _is_fatal(self) -> bool:
        """True if a failure of this engine ends the server."""
        return not (self._is_one_of_many and self._served.exists())

    def _fail(self, reason: str) -> None:
        self._failure = reason
