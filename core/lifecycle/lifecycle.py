"""The life of the models of a server: which are loaded at start, what changes them later, and how they end.

    none       all models are loaded at start
    poll       the same, and the repositories are looked at again every few seconds
    explicit   only what is named is loaded at start; load and unload requests do the rest

Source: docs/spec/repository.md sections 1.3 to 1.7, docs/spec/server-options.md section 5.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import (
    BackendFailed,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotReady,
    RepositoryUnavailable,
    ServerError,
)
from core.lifecycle.load_request import LoadRequest, check_model_name
from core.lifecycle.load_threads import LoadThreads
from core.lifecycle.loader import ModelLoader
from core.lifecycle.model import Model, poll_failure
from core.lifecycle.models import Models
from core.lifecycle.options import EngineOptions
from core.lifecycle.retirement import Retirement, log_in_flight
from core.lifecycle.serving_phase import Phase, ServingPhase
from core.lifecycle.version import ModelVersion
from core.repository.repositories import NOT_UNIQUE, Located, ModelKey, Repositories, Scan
from core.repository.sources.folder_shape import FolderShape, folder_shape
from core.repository.sources.local import LocalSource
from core.repository.sources.single_model import SingleModelSource
from core.repository.sources.source import Source

_log = logging.getLogger("trident.lifecycle")

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
NOT_FOUND = "model not found in any model repository"
ALL_MODELS = "*"
_STARTUP = "server start"
_POLL = "repository poll"
_REQUEST = "load request"
# More than it takes to look at an empty repository.
_START_SECONDS = 30.0


class Lifecycle:
    """Loads on native threads of its own; `start` returns at once and `phase` says how far it is.

    `open_source` makes the source of a repository from what names it; it is called on the startup thread.
    """

    def __init__(self, options: EngineOptions, loader: ModelLoader, open_source: Callable[[str], Source]) -> None:
        self._options = options
        self._loader = loader
        self._open_source = open_source
        self._retirement = Retirement()
        self.models = Models(
            lambda key, publish: Model(key, loader, self._retirement, publish), namespacing=options.namespacing
        )
        self._repositories = Repositories([])
        self._threads = LoadThreads(options.load_threads)
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._loading: list[str] = []
        self._done = 0
        self._total = 0
        self._failures: dict[str, str] = {}
        # What a poll found to load, as it was listed last, until a thread takes it up.
        self._queued: dict[ModelKey, Located] = {}
        self._has_repositories = False
        self._polls = 0
        self._finished_loading = threading.Event()
        self._exiting = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-lifecycle", daemon=True)

    def start(self) -> None:
        """Begin to load what the control mode asks for at start."""
        self._thread.start()

    def wait_loaded(self, timeout_s: float) -> bool:
        """Whether loading ended, well or badly, within `timeout_s` seconds. Blocks: never on a front end's thread."""
        return self._finished_loading.wait(timeout_s)

    @property
    def phase_name(self) -> Phase:
        return self._phase

    def phase(self) -> ServingPhase:
        """How far the start is. When it has ended, `model` and `failures` are what keeps the server unready now, and
        what the start could not find. Looks at every model then: not for what is asked all the time."""
        with self._lock:
            name, loading, failures = self._phase, self._loading[:1], dict(self._failures)
            done, total = self._done, self._total
        if self._finished_loading.is_set():
            # What failed at the start and is a model may serve by now.
            unready = self.models.unready()
            known = self.models.names()
            loading = [model for model, reason in unready.items() if not reason]
            failures = {what: reason for what, reason in failures.items() if what not in known}
            failures |= {model: reason for model, reason in unready.items() if reason}
        return ServingPhase(name=name, model=loading[0] if loading else "", done=done, total=total, failures=failures)

    @property
    def has_repositories(self) -> bool:
        """Whether all repositories could be read at start. Where not, no model will ever be loaded."""
        return self._has_repositories

    def repository_names(self) -> dict[ModelKey, str]:
        """Every model directory there is, with why it cannot be loaded, or "". Blocks on storage."""
        return self._repositories.names()

    def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Load, or reload, one model, as a client asks. Blocks until it serves.

        `parameters` are those of the load request: `config` as text, `file:PATH` as bytes. Raises a ServerError with
        Triton's text.
        """
        self._refuse_unless_explicit()
        with LoadRequest.read(name, parameters) as request:
            try:
                located = [request.located] if request.located else self._find(name)
            except RepositoryUnavailable as error:
                _log.error("failed to poll model repository for model '%s': %s", name, error.message)
                raise ModelLoadFailed(poll_failure(name), hint=error.message, model=name) from error
            for one in located:
                self.models.add(one.key).load(one, _REQUEST, request.config)

    def load_directory(self, name: str, directory: Path) -> None:
        """Load the model in `directory`, outside of all repositories, under `name`. Blocks until it serves.

        The model's files may also be in it without a version directory. Where this is asked for nothing is loaded at
        the start, whose end is waited for. Raises a ServerError as `load` does; of a model that was not there before
        nothing is left then.
        """
        self._finished_loading.wait(_START_SECONDS)
        self._refuse_unless_explicit()
        check_model_name(name)
        parent = LocalSource(directory.parent)
        listed = parent.files(directory.name)
        if listed is None:
            raise ModelLoadFailed(poll_failure(name), hint=f"there is no directory {directory}", model=name)
        bare = folder_shape([file.path for file in listed]) is FolderShape.FILES
        source = SingleModelSource(parent, directory.name, name, bare=bare)
        model = self.models.add(ModelKey(name))
        try:
            model.load(Located(ModelKey(name), source, tuple(source.files(name) or ())), _REQUEST)
        except ServerError:
            if not model.serving and not model.required:
                model.forget()
            raise

    def unload(self, name: str, *, wait: bool = False) -> None:
        """Begin to unload a model, and with `wait` return when all of it is free.

        One that is unknown or not loaded is no error.
        """
        self._refuse_unless_explicit()
        leaving = [version for model in self.models.named(name) for version in model.serving.values()]
        for model in self.models.named(name):
            model.unload("unload request")
        for version in leaving if wait else ():
            version.gone.wait()

    def begin_exit(self) -> None:
        """Unready from now on; requests are still served."""
        with self._lock:
            self._phase = Phase.EXITING
        self._exiting.set()
        self._threads.close()

    def log_in_flight(self, seconds_left: float) -> None:
        """Say which versions have something to answer yet."""
        log_in_flight(self._serving(), seconds_left)

    def finish(self, timeout_s: float) -> bool:
        """Stop taking requests, serve those taken, free everything. False if some were left after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        self._exiting.set()
        _log.info("Waiting for in-flight requests to complete.")
        for version in self._serving():
            version.stop()
        for model in self.models.all():
            model.leave("server exit")
        return self._retirement.wait(max(0.0, deadline - time.monotonic()))

    def _serving(self) -> list[ModelVersion]:
        return [version for model in self.models.all() for version in model.serving.values()]

    def _refuse_unless_explicit(self) -> None:
        if self._options.control_mode != "explicit":
            raise ModelNotReady(NOT_EXPLICIT, hint="start with --model-control-mode=explicit")
        if self._phase in (Phase.STARTING, Phase.LOADING):  # as readiness has it: who was told ready is not refused
            raise ModelNotReady("Server not ready", hint="the models of the start are still being loaded")
        if self._exiting.is_set():
            raise ModelNotReady("Server not ready", hint="the server is stopping")

    def _find(self, name: str) -> list[Located]:
        """Where `name` is: at one place, or under namespacing at several. Raises ModelLoadFailed."""
        located = self._repositories.find(name)
        if not located:
            _log.error("failed to poll model '%s': %s.", name, NOT_FOUND)
            raise ModelLoadFailed(poll_failure(name), hint=NOT_FOUND, model=name)
        if len(located) > 1 and not self._options.namespacing:
            _log.error("failed to poll model '%s': not unique across all model repositories", name)
            raise ModelLoadFailed(poll_failure(name), hint=NOT_UNIQUE, model=name)
        return located

    # --- on the lifecycle thread and the load threads ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._repositories = Repositories(
                [self._open_source(text) for text in self._options.repositories], namespacing=self._options.namespacing
            )
            located = self._models_of_start()
        except ServerError as error:
            # The hint names places of this machine: that is for the log, not for who asks whether the server is ready.
            _log.error("%s", f"{error.message}: {error.hint}" if error.hint else error.message)
            self._end_loading({"model repository": error.reason})
            return
        except Exception as error:  # a storage's bug: without this the server would be starting for ever
            _log.exception("failed to look at the model repositories")
            self._end_loading({"model repository": f"Internal: {error}"})
            return
        self._has_repositories = True
        self._load_all(located)
        if self._options.control_mode == "poll" and self._options.poll_secs > 0:
            while not self._exiting.wait(self._options.poll_secs):
                try:
                    self._poll()
                except Exception:  # what serves goes on, and the next poll may do better
                    _log.exception("failed to poll the model repositories")

    def _models_of_start(self) -> list[Located]:
        """What is loaded at start; what cannot be is among the failures. Raises RepositoryUnavailable."""
        named = tuple(dict.fromkeys(self._options.load_models))
        if self._options.control_mode != "explicit" or named == (ALL_MODELS,):
            scan = self._repositories.scan()
            for failure in scan.failures.values():
                raise failure
            self._note_duplicates(scan.duplicates)
            for name in scan.duplicates:
                self._failures[name] = NOT_UNIQUE
            return list(scan.models.values())
        if ALL_MODELS in named:
            raise InvalidRequest("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        self._repositories.check()
        located: list[Located] = []
        for name in named:
            try:
                located += self._find(name)
            except ModelLoadFailed as error:
                self._failures[name] = error.hint or error.reason
        return located

    def _load_all(self, located: Iterable[Located]) -> None:
        waiting = list(located)
        self._loader.plan_threads(len(waiting))
        with self._lock:
            self._total = len(waiting)
            if self._phase == Phase.STARTING:
                self._phase = Phase.LOADING
        for one in waiting:
            self.models.add(one.key).required = True
        for one in waiting:
            self._threads.submit(partial(self._load_at_start, one))
        self._threads.wait_idle()
        self._end_loading({})

    def _end_loading(self, failures: dict[str, str]) -> None:
        with self._lock:
            self._failures.update(failures)
            if self._phase != Phase.EXITING:
                self._phase = Phase.FAILED if self._failures else Phase.READY
        self._finished_loading.set()

    def _load_at_start(self, located: Located) -> None:
        name = located.key.name
        with self._lock:
            self._loading.append(name)
        failure = self._load(located, _STARTUP)
        with self._lock:
            self._loading.remove(name)
            self._done += 1
            if failure:
                self._failures[name] = failure

    def _load(self, located: Located, cause: str) -> str:
        """Returns why it failed, or ""; everything has been logged by then."""
        model = self.models.add(located.key)
        try:
            model.load(located, cause)
        except ServerError as error:
            return model.problem or error.message.strip()
        except Exception as exc:  # a bug that one model brings to light must not end the thread that loads the others
            _log.exception("loading '%s' failed", located.key.name)
            model.problem = BackendFailed(str(exc) or type(exc).__name__).reason
            return model.problem
        return ""

    def _load_later(self, located: Located) -> None:
        """Each model waits once for a thread, whatever changes meanwhile: polls come round while loads take long."""
        with self._lock:
            is_new = located.key not in self._queued
            self._queued[located.key] = located
        if is_new:
            self._threads.submit(partial(self._load_queued, located.key))

    def _load_queued(self, key: ModelKey) -> None:
        with self._lock:
            located = self._queued.pop(key, None)
        if located is not None:
            self._load(located, _POLL)

    def _note_duplicates(self, names: Iterable[str]) -> None:
        """A model that is not unique is neither loaded nor unloaded."""
        for name in sorted(names):
            model = self.models.add(ModelKey(name))
            if model.problem != NOT_UNIQUE:
                _log.error("failed to poll model '%s': not unique across all model repositories", name)
            model.problem = NOT_UNIQUE
            model.required = model.required or not self._finished_loading.is_set()

    def _poll(self) -> None:
        """Look at all repositories and begin what has to be done. A model that is still being loaded is left alone."""
        self._polls += 1
        scan = self._repositories.scan()
        for location, error in scan.failures.items():
            _log.warning("failed to poll model repository %s: %s; its models stay as they are", location, error.message)
        self._note_duplicates(scan.duplicates)
        with self._lock:
            self._queued = {key: located for key, located in self._queued.items() if key in scan.models}
        for located in scan.models.values():
            model = self.models.add(located.key)
            # After a failure the old files may come back: nothing is loaded then, but the reason goes.
            changed = model.has_failed or not model.is_made_of(located.files)
            if changed and not model.is_busy and model.is_worth_a_try(located.files, self._polls):
                self._load_later(located)
        self._unload_missing(scan)

    def _unload_missing(self, scan: Scan) -> None:
        for model in self.models.all():
            gone = model.key not in scan.models and model.key.name not in scan.duplicates
            if gone and not model.is_busy and model.location not in scan.failures:
                if model.serving:
                    _log.info("'%s' is no longer in its repository", model.key.name)
                    model.unload(_POLL)
                model.forget()
