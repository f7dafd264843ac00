"""Models that are loaded by their first request and unloaded when idle: --model-control-mode=demand.

    registered -> loading -> serving -> registered    after it was idle, or for the memory of another
                     \\-> failed                       until a pause is over, which grows with each failure

A registered model is a few hundred bytes: its configuration was read and checked, and its files are not in memory. All
requests to it wait for the same load. When a load lacks memory, the model with the highest score is unloaded: its
memory, times the time since its last request, divided by the duration of its load.
Source: docs/models-on-demand.md.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from trident.core.borders import guarded, text_of
from trident.core.config.resolve import idle_seconds, is_pinned
from trident.core.errors import AlreadyLoaded, ModelCold, ModelNotFound, OutOfMemory, ServerError, ServerStopping
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.memory import CPU, Need, Shortage
from trident.core.lifecycle.model import Model
from trident.core.lifecycle.models import Loads, Models, ambiguous, failed_to_load
from trident.core.lifecycle.reader import Prepared
from trident.core.lifecycle.state import REGISTERED, LoadCause
from trident.core.lifecycle.version import ModelVersion
from trident.core.observability.statistics import COLD_START_BOUNDS, DemandMetrics, DemandModel, DemandOverview, LetGo
from trident.core.repository.repository import select_versions
from trident.core.repository.sources import NOT_UNIQUE, Located, ModelKey, Repositories, Source, size_of

_log = logging.getLogger("trident.lifecycle")

_LONGEST_PAUSE_S = 64
# A model that was loaded for requests gets this time for their arrival.
_GRACE_S = 1.0
_LEAST_LOAD_S = 0.001
# Shown to people.
_MINUTE_S = 60.0
_LET_GO_AT_MOST = 100
_MODELS_AT_MOST = 200

Then = Callable[[], object]
_Resident = Sequence[tuple["Registration", Model]]


class Reason(Enum):
    """Reason of an unload; the value is the label of the metric."""

    IDLE = "idle"
    MEMORY = "memory"
    REMOVED = "removed"


@dataclass(slots=True, eq=False)
class Registration:
    """A model that is loaded when something asks for it.

    `versions` are those that its load would serve, `size` the bytes of their files. `is_configured`: its configuration
    pins it, `is_pinned`: the start or a client did. `idle_s` is its own time, None for the server's. One outside the
    repositories has an `origin`, and `beside` it are the models of its steps.
    """

    key: ModelKey
    source: Source
    versions: tuple[int, ...] = ()
    size: int = 0
    is_configured: bool = False
    is_pinned: bool = False
    idle_s: float | None = None
    origin: str = ""
    beside: Source | None = None
    is_loading: bool = False
    waiting: list[Then] = field(default_factory=list)
    # Monotonic seconds.
    asked_at: float = 0.0
    loaded_at: float = 0.0
    load_s: float = 0.0
    cold_starts: int = 0
    cold_s: float = 0.0
    last_cold_s: float = 0.0
    failures: int = 0
    retry_at: float = 0.0

    def read(self, prepared: Prepared) -> None:
        """Apply the configuration. Raises ConfigInvalid if it selects no version."""
        config = prepared.config
        self.versions = tuple(select_versions(config, prepared.available, self.key.name, prepared.layout_hint))
        self.size = size_of(prepared.located.files, self.versions)
        self.is_configured = is_pinned(config)
        self.idle_s = idle_seconds(config)

    def note_failure(self) -> None:
        self.failures += 1
        self.retry_at = time.monotonic() + min(1 << min(self.failures - 1, 10), _LONGEST_PAUSE_S)

    def note_success(self, seconds: float) -> None:
        self.failures, self.retry_at = 0, 0.0
        self.load_s, self.loaded_at = seconds, time.monotonic()


class Demand:
    """Any thread, unless said otherwise. `submit` runs a load of this many bytes on a load thread."""

    def __init__(
        self,
        models: Models,
        loads: Loads,
        loader: ModelLoader,
        submit: Callable[[Callable[[], None], int], None],
        leaving: Callable[[], Iterable[ModelVersion]],
        idle_s: float,
    ) -> None:
        """`leaving` are the versions that are being unloaded. After `idle_s` seconds without requests a model goes; 0:
        never."""
        self._models = models
        self._loads = loads
        self._loader = loader
        self._submit = submit
        self._leaving = leaving
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._registered: dict[str, dict[ModelKey, Registration]] = {}
        self._is_closed = False
        # One thread at a time decides which models go.
        self._deciding = threading.Lock()
        # More than the budget is taken by models that cannot go.
        self._is_over = False
        self._evictions: Counter[Reason] = Counter()
        self._let_go: deque[LetGo] = deque(maxlen=_LET_GO_AT_MOST)
        self._loaded_at: deque[float] = deque()
        self._cold_starts = [0] * (len(COLD_START_BOUNDS) + 1)
        self._cold_seconds = 0.0
        models.unloaded = self.unloaded
        loader.memory.make_room = self.make_room

    # --- the registered models

    def register(self, located: Located) -> None:
        """Read and check the configuration of a model. A problem of it is its failure; others serve."""
        registration = Registration(located.key, located.source)
        try:
            registration.read(self._loader.reader.prepare(located))
        except ServerError as error:
            self._models.add(located.key).note_failure(error)
            registration.note_failure()
        with self._lock:
            self._registered.setdefault(located.key.name, {})[located.key] = registration

    def add(self, registration: Registration) -> None:
        """Register a model outside the repositories. Raises AlreadyLoaded if there is one of its name."""
        key = registration.key
        with self._lock:
            before = self._registered.setdefault(key.name, {}).get(key)
            if before is None:
                self._registered[key.name][key] = registration
        if before is not None:
            state = "being loaded" if before.is_loading else "loaded"
            raise AlreadyLoaded(f"model '{key.name}' is {state} already", model=key.name)

    def load(self, registration: Registration) -> None:
        """Load a model that was added as one that is loading. Raises as `Loads.load` does; then it is registered no
        more."""
        registration.asked_at = began = time.monotonic()
        model = self._models.add(registration.key)
        try:
            self._load_files(registration, LoadCause.REQUEST)
        except BaseException:
            self._remove(registration.key)
            if not model.serving:
                self._loads.unload(model, "its load failed", unload_dependents=True)
                model.forget()
            raise
        finally:
            self._end_load(registration, model, time.monotonic() - began)

    def _remove(self, key: ModelKey) -> None:
        with self._lock:
            same = self._registered.get(key.name, {})
            same.pop(key, None)
            if not same:
                self._registered.pop(key.name, None)

    def forget(self, key: ModelKey) -> None:
        self._remove(key)
        model = self._models.get(key)
        if model is None:
            return
        if model.serving:
            self._evict(model, Reason.REMOVED, "it is no longer in its repository")
        model.forget()

    def all(self) -> list[Registration]:
        with self._lock:
            return [each for same in self._registered.values() for each in same.values()]

    def named(self, name: str) -> list[Registration]:
        with self._lock:
            return list(self._registered.get(name, {}).values())

    def of(self, key: ModelKey) -> Registration | None:
        with self._lock:
            return self._registered.get(key.name, {}).get(key)

    def pin(self, name: str) -> None:
        for registration in self.named(name):
            registration.is_pinned = True

    def unpin(self, name: str) -> None:
        """Let the model go when others need its memory; one outside the repositories is registered no more."""
        for registration in self.named(name):
            registration.is_pinned = False
            if registration.origin:
                self._remove(registration.key)

    @contextmanager
    def pinning(self, name: str) -> Iterator[None]:
        """Load a model inside, which is pinned from then on, unless that fails."""
        found = [(registration, registration.is_pinned) for registration in self.named(name)]
        began = time.monotonic()
        self.pin(name)
        try:
            yield
        except BaseException:
            for registration, was_pinned in found:
                registration.is_pinned = was_pinned
            raise
        for registration, _ in found:
            registration.note_success(time.monotonic() - began)

    def look_for_names(self, repositories: Repositories) -> None:
        names = repositories.names()
        known = {registration.key for registration in self.all() if not registration.origin}
        for key in known - names.keys():
            _log.info("'%s' is no longer in its repository", key.name)
            self.forget(key)
        for key, problem in names.items():
            if problem == NOT_UNIQUE:
                if key in known:
                    self.forget(key)
                self._models.add(key).note_duplicate()
            elif key not in known:
                for located in repositories.find(key.name):
                    if located.key == key:
                        _log.info("'%s' is registered", key.name)
                        self.register(located)

    # --- loads

    def unloaded(self, name: str, version: int) -> ServerError | None:
        """Why a registered model does not serve, which may be that nothing has asked for it; None for other names."""
        same = self.named(name)
        if len(same) != 1:
            return ambiguous([each.key for each in same]) if same else None
        registration = same[0]
        if self._is_closed:
            return ServerStopping("Server exiting", model=name)
        model = self._models.get(registration.key)
        if not registration.is_loading:
            if model is not None and model.serving and version != -1:
                return None  # the load has ended without it
            pause_s = registration.retry_at - time.monotonic()
            if model is not None and pause_s > 0:
                failure: ServerError = failed_to_load(model)
                if any(each.ran_out_of_memory for each in model.versions.values()):
                    failure = OutOfMemory(failure.message, hint=failure.hint, model=name)
                failure.retry_after_s = math.ceil(pause_s)
                return failure
        if version != -1 and registration.versions and version not in registration.versions:
            known = ", ".join(map(str, registration.versions))
            return ModelNotFound(
                f"Request for unknown model: '{name}' version {version} is not found", hint=f"the versions are: {known}"
            )
        cold = ModelCold(f"model '{name}' is {REGISTERED}", model=name)
        cold.await_load = partial(self.await_load, registration)
        return cold

    def await_load(self, registration: Registration, then: Then) -> None:
        """Load a model, unless that has begun, and call `then` when it has ended."""
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                registration.waiting.append(then)
            begins = not is_closed and not registration.is_loading
            if begins:
                registration.is_loading = True
                registration.asked_at = time.monotonic()
        if is_closed:
            then()
        elif begins:
            self._submit(partial(self._load, registration), registration.size)

    def metrics(self) -> DemandMetrics:
        budget = self._loader.memory.budget
        memory = budget.read() if budget is not None else None
        with self._lock:
            registered = [each for same in self._registered.values() for each in same.values()]
            return DemandMetrics(
                registered=len(registered),
                resident_bytes=memory.used if memory is not None else 0,
                budget_bytes=memory.total if memory is not None else 0,
                waiting=sum(len(each.waiting) for each in registered),
                evictions={reason.value: self._evictions[reason] for reason in Reason},
                cold_starts=tuple(self._cold_starts),
                cold_seconds=self._cold_seconds,
            )

    def _load(self, registration: Registration) -> None:
        key = registration.key
        model = self._models.add(key)
        is_served = bool(model.serving)
        began = time.monotonic()
        try:
            if not is_served and self.of(key) is registration:
                self._load_files(registration, LoadCause.DEMAND)
        except ServerError as error:
            if not model.has_failed:
                model.note_failure(error)
        except Exception as error:  # a bug that one model triggers must not end the thread that loads the others
            _log.exception("loading '%s' failed", key.name)
            model.problem = text_of(error)
        finally:
            if self.of(key) is None:  # it was unloaded or removed meanwhile
                self._loads.unload(model, "it is no longer registered", unload_dependents=True)
                model.forget()
            self._end_load(registration, model, None if is_served else time.monotonic() - began)

    def _load_files(self, registration: Registration, cause: LoadCause) -> None:
        key, source = registration.key, registration.source
        files = source.files(key.name)
        if files is None:
            self.forget(key)
            return
        self._loads.load(Located(key, source, tuple(files)), cause, beside=registration.beside)
        registration.size = size_of(files, self._models.add(key).serving)

    def _end_load(self, registration: Registration, model: Model, seconds: float | None) -> None:
        with self._lock:
            if not model.serving:
                registration.note_failure()
            elif seconds is not None:
                registration.versions = tuple(sorted({*registration.versions, *model.serving}))
                registration.note_success(seconds)
                self._loaded_at.append(registration.loaded_at)
                self._forget_loads()
                if registration.waiting:
                    waited_s = registration.loaded_at - registration.asked_at
                    self._cold_starts[bisect_left(COLD_START_BOUNDS, waited_s)] += 1
                    self._cold_seconds += waited_s
                    registration.cold_starts += 1
                    registration.cold_s += waited_s
                    registration.last_cold_s = waited_s
            registration.is_loading = False
            waiting, registration.waiting = registration.waiting, []
        for then in waiting:
            guarded(then, "the end of a load that a request waited for")

    def _forget_loads(self) -> None:
        until = time.monotonic() - _MINUTE_S
        while self._loaded_at and self._loaded_at[0] < until:
            self._loaded_at.popleft()

    def overview(self) -> DemandOverview:
        found = self.metrics()
        resident = {each.key: model for each, model in self._resident()}
        shown = [each for each in self.all() if each.cold_starts or each.key in resident]
        shown.sort(key=lambda each: (each.key not in resident, -each.cold_starts))
        models = [self._shown(each, resident.get(each.key)) for each in shown[:_MODELS_AT_MOST]]
        with self._lock:
            self._forget_loads()
            loads, let_go = len(self._loaded_at), tuple(self._let_go)
        return DemandOverview(
            registered=found.registered,
            resident=len(resident),
            resident_bytes=found.resident_bytes,
            budget_bytes=found.budget_bytes,
            waiting=found.waiting,
            loads=loads,
            models=tuple(models),
            let_go=let_go,
        )

    def _shown(self, registration: Registration, model: Model | None) -> DemandModel:
        return DemandModel(
            model=registration.key.name,
            is_resident=model is not None,
            is_pinned=self._is_pinned(registration),
            bytes=sum(self._held(model).values()) if model is not None else 0,
            rested_s=rested_s(registration, model) if model is not None else 0.0,
            cold_starts=registration.cold_starts,
            cold_seconds=registration.cold_s,
            last_cold_s=registration.last_cold_s,
        )

    def close(self) -> None:
        """Begin no more loads: requests that wait for one fail."""
        with self._lock:
            self._is_closed = True
        for registration in self.all():
            with self._lock:
                waiting, registration.waiting = registration.waiting, []
            for then in waiting:
                guarded(then, "the end of a load that a request waited for")

    # --- letting go

    def look(self) -> None:
        """Let go of models that have been idle for long enough, or that the budget has no room for any more, and forget
        what is left of those that went."""
        for registration, model in self._resident():
            idle_s = self._idle_s if registration.idle_s is None else registration.idle_s
            if idle_s and self._may_go(registration, model) and rested_s(registration, model) >= idle_s:
                self._evict(model, Reason.IDLE, f"it was idle for {idle_s:g} s")
        self._keep_to_budget()
        for model in self._models.unsorted():
            if self.of(model.key) is not None:
                model.drop_unloaded()

    def make_room(self, name: str, shortage: Shortage) -> bool:
        """Let go of the models that are worth least, for the load of `name`. Returns whether a wait may help.

        If those that are pinned leave too little, no other goes.
        """
        with self._deciding:
            leaving = _sum(version.device_bytes for version in self._leaving())
            missing = {device: size - leaving.get(device, 0) for device, size in shortage.free.items()}
            resident = [(each, model) for each, model in self._resident() if model.key.name != name]
            held = {each.key: self._held(model) for each, model in resident}
            pinned = _sum(held[each.key] for each, _ in resident if self._is_pinned(each))
            if any(size < pinned.get(device, 0) for device, size in shortage.left.items()):
                return False
            self._free(missing, resident, held, f"'{name}' needs its memory")
            if leaving:
                return True
            with self._lock:
                return any(not self._is_pinned(each) for same in self._registered.values() for each in same.values())

    def _free(self, missing: Need, resident: _Resident, held: Mapping[ModelKey, Need], why: str) -> Need:
        """Unload the models of least value until no memory is missing. Return the memory still missing, by device."""
        may_go = [(each, model) for each, model in resident if self._may_go(each, model)]
        may_go.sort(key=lambda pair: _worth(pair[0], pair[1], held[pair[0].key]))
        for each, model in may_go:
            if all(size <= 0 for size in missing.values()):
                break
            frees = held[each.key]
            if any(frees.get(device) for device, size in missing.items() if size > 0):
                self._evict(model, Reason.MEMORY, why)
                missing = {device: size - frees.get(device, 0) for device, size in missing.items()}
        return missing

    def _keep_to_budget(self) -> None:
        """Let go of models if requests have made others larger than the budget allows; say so if all are in use."""
        with self._deciding:
            excess = self._loader.memory.excess()
            leaving = _sum(version.device_bytes for version in self._leaving())
            missing: Need = {CPU: excess - leaving.get(CPU, 0)}
            if missing[CPU] > 0:
                resident = list(self._resident())
                held = {each.key: self._held(model) for each, model in resident}
                missing = self._free(missing, resident, held, "requests have made the models larger than the budget")
            is_over = missing[CPU] > 0 and not leaving
            if is_over and not self._is_over:
                _log.warning(
                    "models take %d bytes more than --model-memory gives them%s; these are in use or pinned, and no "
                    "other is loaded until that changes",
                    excess,
                    self._loader.memory.holders(CPU),
                )
            elif self._is_over and not is_over:
                _log.info("models take no more than --model-memory gives them again")
            self._is_over = is_over

    def _resident(self) -> Iterator[tuple[Registration, Model]]:
        for model in self._models.serving:
            registration = self.of(model.key) if model.serving else None
            if registration is not None:
                yield registration, model

    def _is_pinned(self, registration: Registration) -> bool:
        return registration.is_pinned or registration.is_configured

    def _may_go(self, registration: Registration, model: Model) -> bool:
        """Return whether nothing uses the model now, or is about to."""
        if self._is_pinned(registration) or registration.is_loading or model.is_busy or model.is_awaited:
            return False
        if rested_s(registration, model) < _GRACE_S and not any(
            version.statistics.last_inference_ms for version in model.serving.values()
        ):
            return False
        if any(ensemble.is_awaited for ensemble in self._models.dependents(model.key)):
            return False
        return not any(version.is_in_use for version in model.serving.values())

    def is_awaited(self, model: Model) -> bool:
        """Return whether requests wait for the load of the model, or of an ensemble that it is a step of."""
        for each in (model, *self._models.dependents(model.key)):
            registration = self.of(each.key)
            is_long = any(version.attempt.is_long for version in each.attempted)
            if registration is not None and registration.is_loading and not is_long:
                return True
        return False

    def _held(self, model: Model) -> dict[str, int]:
        """The bytes that would become free with the model: of an ensemble its part of those of its steps."""
        found: Counter[str] = Counter()
        for version in model.serving.values():
            found.update(version.device_bytes)
            for step in dict.fromkeys(version.steps):
                found.update({device: size // max(1, step.holds) for device, size in step.device_bytes.items()})
        return dict(found)

    def _evict(self, model: Model, reason: Reason, why: str) -> None:
        size = sum(self._held(model).values())
        _log.info("letting go of '%s' (%d bytes): %s", model.key.name, size, why)
        with self._lock:
            self._evictions[reason] += 1
            self._let_go.append(LetGo(at=time.time(), model=model.key.name, bytes=size, reason=reason.value, text=why))
        self._loads.unload(model, f"let go, {why}", unload_dependents=True)


def rested_s(registration: Registration, model: Model) -> float:
    """Seconds since the last request for a model that serves, or since its load."""
    last_ms = max((version.statistics.last_inference_ms for version in model.serving.values()), default=0)
    since_load = time.monotonic() - registration.loaded_at
    return max(0.0, min(since_load, time.time() - last_ms / 1000) if last_ms else since_load)


def _worth(registration: Registration, model: Model, held: Need) -> float:
    """The lower, the sooner a model goes: large ones that have rested long, and are loaded fast, first."""
    cost = sum(held.values()) * rested_s(registration, model)
    return max(registration.load_s, _LEAST_LOAD_S) / cost if cost else math.inf


def _sum(needs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for need in needs:
        total.update(need)
    return dict(total)
