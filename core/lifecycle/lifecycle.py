"""The lifecycle of the models of a server: loads at the start, later changes, and the end.

    none       all models are loaded at start
    poll       the same, and changes in the repositories are followed every few seconds
    explicit   only the named models are loaded at start; load and unload requests do the rest
    demand     the same, and a request loads the model that it needs: core/lifecycle/demand.py

Source: docs/spec/repository.md sections 1.3 to 1.7, docs/spec/server-options.md section 5.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.borders import guarded
from trident.core.errors import (
    BackendFailed,
    InvalidRequest,
    ModelCold,
    ModelLoadFailed,
    ModelNotReady,
    RepositoryUnavailable,
    ServerError,
)
from trident.core.lifecycle.demand import Demand, Registration
from trident.core.lifecycle.idle_memory import IdleMemory
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.long_executions import LongExecutions
from trident.core.lifecycle.model import Model, Unloads, log_in_flight, poll_failure
from trident.core.lifecycle.models import Loads, Models, find_steps
from trident.core.lifecycle.options import EngineOptions, Readiness
from trident.core.lifecycle.polling import Poller
from trident.core.lifecycle.start_progress import StartProgress
from trident.core.lifecycle.state import LoadCause, Phase
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.layouts import FolderShape, SingleModelSource, folder_shape
from trident.core.repository.override_source import OverrideSource
from trident.core.repository.sources import NOT_UNIQUE, LocalSource, Located, ModelKey, Repositories, Source

_log = logging.getLogger("trident.lifecycle")

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
NOT_FOUND = "model not found in any model repository"
ALL_MODELS = "*"
# Longer than reading an empty repository takes.
_START_SECONDS = 30.0
# Seconds between two searches for idle models.
_LOOK_S = 1.0
# From this many bytes of files on, a model must not delay smaller ones.
_LARGE = 64 << 20
_FILE = "file:"
_ONLY_WILDCARD = "Wildcard model name '*' must be the ONLY startup model if specified at all."


class Lifecycle:
    """Loads on its own native threads; `start` returns at once, and `phase` says how far the start is.

    `open_source` makes the source of a repository from its location; it is called on the lifecycle thread. `progress`
    is that of the start, and `loads` loads models together with those that they need.
    """

    def __init__(self, options: EngineOptions, loader: ModelLoader, open_source: Callable[[str], Source]) -> None:
        self._options = options
        self._loader = loader
        self._open_source = open_source
        self._unloads = Unloads(limit_s=options.unload_timeout_s or None)
        self.models = Models(
            lambda key, models: Model(
                key, loader, self._unloads, models.publish, models.find, partial(find_steps, models, key.namespace)
            ),
            namespacing=options.namespacing,
            place=options.place,
        )
        self._repositories = Repositories([])
        self._threads = LoadThreads(options.load_threads)
        self.progress = StartProgress()
        # The current repositories, opened at the start.
        self.loads = Loads(self.models, loader, lambda name: self._repositories.find(name))
        self._long_executions = LongExecutions(
            lambda: {*self.models.versions(), *self._unloads.leaving},
            lambda: [version for model in self.models.all() for version in model.attempted],
        )
        self._idle_memory = IdleMemory(self._serving, loader.memory, options.gpu_memory_idle_s)
        self.demand: Demand | None = None
        if options.control_mode == "demand":
            self.demand = Demand(
                self.models,
                self.loads,
                loader,
                self._threads.submit,
                lambda: self._unloads.leaving,
                options.model_idle_s,
            )
        self._poller: Poller | None = None
        # True if all repositories could be read at start. If not, no model will ever be loaded.
        self.has_repositories = False
        # The models of the start that no repository had, until they serve or are unloaded.
        self._unfound: frozenset[str] = frozenset()
        self._exiting = threading.Event()
        self._own_thread = threading.Thread(target=self._run, name="trident-lifecycle", daemon=True)

    def start(self) -> None:
        self._long_executions.start()
        self._idle_memory.start()
        self._own_thread.start()

    def meets_readiness(self) -> bool:
        """Return True if the models meet the readiness rule of the options, once the start has ended."""
        rule, models = self._options.readiness, self.models.all()
        if rule is Readiness.STARTED:
            return True
        if rule is Readiness.STRICT:
            return all(model.is_ready and not model.trouble for model in models)
        unfound = self._unfound.difference(model.key.name for model in models if model.serving)
        return not unfound and all(not model.required or (model.serving and not model.trouble) for model in models)

    def repository_names(self) -> dict[ModelKey, str]:
        """Every model directory, with why it cannot be loaded, or "". Blocks on storage, unless they are registered."""
        if self.demand is not None:
            return dict.fromkeys([registration.key for registration in self.demand.all()], "")
        return self._repositories.names()

    def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Load or reload one model at the request of a client, and pin it. Blocks until it serves.

        `parameters` are those of the load request: `config` as text, `file:PATH` as bytes. Raises a ServerError with
        Triton's text.
        """
        self._refuse_unless_explicit()
        with load_request(name, parameters) as (config, directory):
            if self._options.signature_key and config is not None:
                raise InvalidRequest(
                    "Load parameters 'config' and 'file:' are refused: with --model-signature models are as signed"
                )
            try:
                located = [directory] if directory is not None else self._find(name)
            except RepositoryUnavailable as error:
                _log.error("failed to poll model repository for model '%s': %s", name, error.message)
                raise ModelLoadFailed(poll_failure(name), hint=error.message, model=name) from error
            demand = self.demand
            for one in located:
                if demand is not None and directory is None and demand.of(one.key) is None:
                    demand.register(one)  # it has just appeared in its repository
            with demand.pinning(name) if demand is not None else nullcontext():
                for one in located:
                    self.loads.load(one, LoadCause.REQUEST, config)

    def prefetch(self, name: str) -> None:
        """Begin to load a model as a request for inference does. Raises a ServerError if it cannot be loaded now."""
        if self.demand is None:
            raise InvalidRequest("a load without a wait needs --model-control-mode=demand")
        try:
            self.models.find(name, -1)
        except ModelCold as cold:
            cold.await_load(lambda: None)

    def load_directory(self, name: str, directory: Path, origin: str) -> None:
        """See Engine.load_directory.

        The directory may also hold the files of one version directly. The steps of an ensemble may be beside it; then
        they belong to it alone, and no client can ask for them. A server that is asked for this loads nothing at
        its start, so this waits for the end of the start.
        """
        if self.demand is None:
            raise InvalidRequest("models outside the repositories need --model-control-mode=demand")
        has_started = self._own_thread.ident is not None
        if has_started:
            self.progress.wait(_START_SECONDS)
            self._refuse_unless_explicit()
        check_model_name(name)
        parent: Source = LocalSource(directory.parent)
        if self._options.signature_key:
            from trident.core.repository.signature import SignedSource, SigningKey

            parent = SignedSource(parent, SigningKey(Path(self._options.signature_key)))
        listed = parent.files(directory.name)
        if listed is None:
            raise ModelLoadFailed(poll_failure(name), hint=f"there is no directory {directory}", model=name)
        bare = folder_shape([file.path for file in listed]) is FolderShape.FILES
        registration = Registration(
            ModelKey(name),
            SingleModelSource(parent, directory.name, name, bare=bare),
            is_pinned=True,
            origin=origin,
            beside=parent,
            is_loading=has_started,
        )
        self.demand.add(registration)
        self.models.add(registration.key).origin = f" from {directory}"
        if has_started:
            self.demand.load(registration)

    def unload(self, name: str, unload_dependents: bool = False, *, wait: bool = False) -> None:
        """Begin to unload a model, and unpin it; with `wait` return when all of its memory is free.

        The ensembles that use it are unloaded as well. With `unload_dependents` so are the models of its own steps, see
        `Loads.unload`. An unknown model, or one that is not loaded, is not an error. A model that requests wait for is
        unpinned only, unless its load takes long.
        """
        self._refuse_unless_explicit()
        self._unfound -= {name}
        if self.demand is not None:
            self.demand.unpin(name)
        leaving: list[ModelVersion] = []
        for model in self.models.named(name):
            if self.demand is None or not self.demand.is_awaited(model):
                leaving += self.loads.unload(model, "unload request", unload_dependents=unload_dependents)
        for version in leaving if wait else ():
            version.gone.wait()

    def begin_exit(self) -> None:
        """Become unready; requests are still served."""
        self.progress.exit()
        self._exiting.set()
        self._threads.close()
        if self.demand is not None:
            self.demand.close()
        for model in self.models.all():
            model.stop_loading("the server is stopping")

    def log_in_flight(self, seconds_left: float) -> None:
        log_in_flight(self._serving(), seconds_left)

    def finish(self, timeout_s: float) -> bool:
        """Refuse new requests, answer accepted ones, free everything. False if some remain after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        self._exiting.set()
        _log.info("Waiting for in-flight requests to complete.")
        serving = self._serving()
        for version in serving:
            version.stop(accept_nested=True)
        self._unloads.drain(serving, timeout_s)
        for model in self.models.all():
            model.leave("server exit")
        try:
            return self._unloads.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self._long_executions.stop()
            self._idle_memory.stop()

    def resident(self) -> list[ModelVersion]:
        serving = [version for model in self.models.serving for version in model.serving.values()]
        return [*serving, *self._unloads.leaving]

    def _serving(self) -> list[ModelVersion]:
        return [version for model in self.models.all() for version in model.serving.values()]

    def _refuse_unless_explicit(self) -> None:
        if self._options.control_mode not in ("explicit", "demand"):
            raise ModelNotReady(NOT_EXPLICIT, hint="start with --model-control-mode=explicit")
        # The phase, not `has_ended`: a client that was told that the server is ready must not be refused.
        if self.progress.phase in (Phase.STARTING, Phase.LOADING):
            raise ModelNotReady("Server not ready", hint="the models of the start are still being loaded")
        if self._exiting.is_set():
            raise ModelNotReady("Server not ready", hint="the server is stopping")

    def _find(self, name: str) -> list[Located]:
        """Where `name` is: in one repository, with namespacing perhaps in several. Raises ModelLoadFailed."""
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
            # Only the log gets the hint: it names paths of this machine, and readiness is public.
            _log.error("%s", f"{error.message}: {error.hint}" if error.hint else error.message)
            self._fail_start(error.reason)
            return
        except Exception as error:  # a bug in a storage: without this the server would stay in its start forever
            _log.exception("failed to read the model repositories")
            self._fail_start(f"Internal: {error}")
            return
        self.has_repositories = True
        self._poller = poller = Poller(
            self._repositories,
            self.models,
            self._threads.submit,
            partial(self._load, cause=LoadCause.POLL),
            self.loads.unload,
        )
        is_shared = self.demand is not None and bool(self._options.repositories)
        plan = plan_threads(available_cores(), self._options.load_threads if is_shared else len(located))
        _log.info("thread plan: %s", plan)
        self._loader.threads = plan.intra_op_threads
        for one in located:
            model = self.models.add(one.key)
            model.required = model.is_awaited = True
        self.models.are_listed = True
        self.progress.begin(len(located))
        for one in located:
            self._threads.submit(partial(self._load_at_start, one))
        polls = self._options.control_mode == "poll" and self._options.poll_secs > 0
        while not self._threads.wait_idle(self._until_poll_s() if polls else None):
            if not self._exiting.is_set():
                self._look(poller.poll_loads)  # a load may wait for a corrected file indefinitely
        self.progress.end()
        if self._options.control_mode == "poll" and self._options.poll_secs > 0:
            while not self._exiting.wait(self._until_poll_s()):
                self._look(self.poll)
        elif self.demand is not None:
            for registration in self.demand.all():
                if registration.origin:  # loaded in the last engine
                    self.demand.await_load(registration, lambda: None)
            next_poll = time.monotonic() + self._options.poll_secs
            while not self._exiting.wait(_LOOK_S):
                self._look(self.demand.look)
                if self._options.poll_secs > 0 and time.monotonic() >= next_poll:
                    self._look(partial(self.demand.look_for_names, self._repositories))
                    next_poll = time.monotonic() + self._options.poll_secs

    def _look(self, poll: Callable[[], None]) -> None:
        try:
            poll()
        except Exception:  # the models continue to serve, and the next poll may succeed
            _log.exception("failed to poll the model repositories")

    def _fail_start(self, reason: str) -> None:
        self.progress.fail("model repository", reason)
        self.progress.end()

    def _until_poll_s(self) -> float:
        every_s = self._options.poll_secs
        # Several engines poll at the same moments, so that they change their models together: all processes of a
        # machine share the monotonic time.
        return every_s if self._options.place.count == 1 else every_s - time.monotonic() % every_s

    def poll(self) -> None:
        """Look at all repositories once. The lifecycle thread calls this in poll mode after the start."""
        assert self._poller is not None
        self._poller.poll()

    def _models_of_start(self) -> list[Located]:
        """The models to load; those that cannot be found are noted as failures. Raises RepositoryUnavailable."""
        named = tuple(dict.fromkeys(self._options.load_models))
        if self._options.control_mode != "explicit" or named == (ALL_MODELS,):
            scan = self._repositories.scan()
            for failure in scan.failures.values():
                raise failure
            if self._options.control_mode == "none":
                self._repositories.check_exist()
            self._repositories.warn_of_empty()
            for name in sorted(scan.duplicates):
                self.models.add(ModelKey(name)).note_duplicate(required=self.demand is None)
                if self.demand is None:
                    self.progress.fail(name, NOT_UNIQUE)
            if self.demand is not None:
                began = time.monotonic()
                for one in scan.models.values():
                    self.demand.register(one)
                _log.info("registered %d models in %.1f s", len(scan.models), time.monotonic() - began)
                for name in set(named) - {key.name for key in scan.models} - {ALL_MODELS}:
                    self._note_unfound(name, NOT_FOUND)
                pinned = [one for one in scan.models.values() if one.key.name in named or ALL_MODELS in named]
                for one in pinned:
                    self.demand.pin(one.key.name)
                return pinned
            return list(scan.models.values())
        if ALL_MODELS in named:
            raise InvalidRequest(_ONLY_WILDCARD)
        self._repositories.check()
        self._repositories.warn_of_empty()
        located: list[Located] = []
        for name in named:
            try:
                located += self._find(name)
            except ModelLoadFailed as error:
                self._note_unfound(name, error.hint or error.reason)
        return located

    def _note_unfound(self, name: str, reason: str) -> None:
        self._unfound |= {name}
        self.progress.fail(name, reason)

    def _load_at_start(self, located: Located) -> None:
        name = located.key.name
        self.progress.begin_model(name)
        began = time.monotonic()
        problem = self._load(located, LoadCause.START)
        registration = self.demand.of(located.key) if self.demand is not None else None
        if registration is not None and not problem:
            registration.note_success(time.monotonic() - began)
        self.progress.end_model(name, problem)

    def _load(self, located: Located, cause: LoadCause) -> str:
        """Load a model; returns why it failed, or "". Does not raise: everything is logged."""
        model = self.models.add(located.key)
        try:
            self.loads.load(located, cause)
        except ServerError as error:
            return model.problem or error.message.strip()
        except Exception as exc:  # a bug that one model triggers must not end the thread that loads the others
            _log.exception("loading '%s' failed", located.key.name)
            model.problem = BackendFailed(str(exc) or type(exc).__name__).reason
            return model.problem
        return ""


class LoadThreads:
    """Threads that load models. Any thread may call the methods. What submitted work raises is logged.

    One of several threads is for small models: large ones, which may take minutes, wait for each other.
    They are daemon threads: a load that never ends must not keep the process alive, as `concurrent.futures` would.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        # By whether the model is large, in the order of arrival.
        self._waiting: dict[bool, deque[Callable[[], None]]] = {False: deque(), True: deque()}
        self._running = {False: 0, True: 0}
        self._closed = False

    def submit(self, work: Callable[[], None], size: int = 0) -> None:
        """Queue `work`, which loads files of `size` bytes; after `close` drop it."""
        with self._lock:
            if self._closed:
                return
            is_large = size >= _LARGE
            self._waiting[is_large].append(work)
            if not self._may_run(is_large):
                return
            self._running[is_large] += 1
        threading.Thread(target=self._run, args=(is_large,), name="trident-load", daemon=True).start()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Block until all submitted work is done. Returns False after `timeout_s` seconds."""
        with self._lock:
            return self._idle.wait_for(lambda: not sum(self._running.values()), timeout_s)

    def close(self) -> None:
        """Drop the work that has not begun. Running work continues."""
        with self._lock:
            self._closed = True
            for waiting in self._waiting.values():
                waiting.clear()

    def _may_run(self, is_large: bool) -> bool:
        large_at_most = max(1, self._limit - 1)
        return sum(self._running.values()) < self._limit and not (is_large and self._running[True] >= large_at_most)

    def _run(self, is_large: bool) -> None:
        while True:
            with self._lock:
                self._running[is_large] -= 1
                # Large models alternate with small ones where both wait.
                may_be_large = bool(self._waiting[True]) and self._may_run(True)
                is_large = may_be_large and (not is_large or not self._waiting[False])
                if not self._waiting[is_large]:
                    self._idle.notify_all()
                    return
                self._running[is_large] += 1
                work = self._waiting[is_large].popleft()
            guarded(work, "a load")


# --- the load request of a client. Source: docs/spec/repository.md section 1.6, docs/spec/http.md section 8.


@contextmanager
def load_request(name: str, parameters: Mapping[str, str | bytes]) -> Iterator[tuple[str | None, Located | None]]:
    """The configuration, unparsed JSON, and the directory that replace the model's own; None if they do not.

    At its end the files that no version uses are removed. Raises InvalidRequest with Triton's text.
    """
    check_model_name(name)
    files = {key.removeprefix(_FILE): value for key, value in parameters.items() if isinstance(value, bytes)}
    text = parameters.get("config")
    if files and text is None:
        raise InvalidRequest("Load parameter 'config' must be specified for model file override")
    config = text if isinstance(text, str) else None
    if not files:
        yield config, None
        return
    source = OverrideSource(name, files)
    try:
        yield config, Located(ModelKey(name), source, tuple(source.files(name) or ()))
    finally:
        source.close()


def check_model_name(name: str) -> None:
    """Raise InvalidRequest for a name that no model directory can have."""
    if not name.strip():
        raise InvalidRequest("Model name cannot be empty. Please enter a valid name to deploy.")
    if name == ".." or "/" in name:
        raise InvalidRequest(f"invalid model name '{name}', model name must not contain path traversal characters")
