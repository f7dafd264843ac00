"""The models that the server knows: the lookup of the version that a request names, and loads in the right order.

A version of an ensemble holds the versions that its steps run on. When one of them is replaced, the ensemble is loaded
again, beside the one that serves; requests in flight end on the versions on which they began. So no request sees the
reload of a step. An ensemble whose step is unloaded is unloaded too, and comes back with the step.
Source: docs/spec/http.md section 3 (lookup texts), docs/spec/repository.md sections 1.3, 1.5, 1.7 and 1.8.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from trident.core.config.ensemble import EnsembleStep, cycle_from
from trident.core.errors import (
    ConfigInvalid,
    InvalidRequest,
    ModelLoading,
    ModelNotFound,
    ModelNotReady,
    OutOfMemory,
    ServerError,
)
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.model import LoadReplaced, Model
from trident.core.lifecycle.options import EnginePlace
from trident.core.lifecycle.state import LoadCause, LoadCounts, ModelState
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.sources import Located, ModelKey, Source

_UNKNOWN: Final = "Request for unknown model: "
_MOST_COMPARED: Final = 50
_LONGEST_COMPARED: Final = 100
_FIRST_HOLD: Final = -2
_ALONE: Final = EnginePlace()


class Models:
    """All models. Loader threads change them under a lock; any thread calls `find`, which takes no lock.

    With `namespacing` several models may have the same name, and an unknown name is an invalid request. `are_listed`:
    the repositories have been read, so that a name which is not among the models does not exist.
    """

    def __init__(
        self, make: Callable[[ModelKey, Models], Model], *, namespacing: bool = False, place: EnginePlace = _ALONE
    ) -> None:
        """`make(key, models)` makes a model, which calls `publish` whenever other versions serve."""
        self._place = place
        self._make = make
        self._namespacing = namespacing
        self.are_listed = False
        self._lock = threading.Lock()
        self._models: dict[ModelKey, Model] = {}
        # The steps of the ensembles among them.
        self._ensembles: dict[ModelKey, tuple[EnsembleStep, ...]] = {}
        # The namespaces in which the ensembles among them look for their steps first.
        self._homes: dict[ModelKey, str] = {}
        # In a server that loads on demand: why a registered model does not serve, None for any other name.
        self.unloaded: Callable[[str, int], ServerError | None] | None = None
        # Read by `find`. Replaced as a whole and never changed, so that readers need no lock.
        self._ready: dict[tuple[str, int], ModelVersion] = {}
        # The models that serve, replaced as a whole as well: each load asks for them, among many that do not.
        self.serving: Sequence[Model] = ()
        # The versions that callers hold, by name and number. Changed under the lock, read without it.
        self._held: dict[tuple[str, int], ModelVersion] = {}
        # Changes with every `publish`, for callers that remember what they found.
        self.generation = 0

    def add(self, key: ModelKey) -> Model:
        with self._lock:
            if key not in self._models:
                self._models[key] = self._make(key, self)
            return self._models[key]

    def get(self, key: ModelKey) -> Model | None:
        return self._models.get(key)

    def named(self, name: str) -> list[Model]:
        with self._lock:
            return [model for key, model in self._models.items() if key.name == name]

    def note_steps(self, key: ModelKey, steps: tuple[EnsembleStep, ...], home: str) -> None:
        """Record the steps of an ensemble; without any, the model is not one. The steps of an ensemble that was
        unloaded because of one of them stay: it serves again when it can. `home` is the namespace of its steps.
        """
        with self._lock:
            self._ensembles.pop(key, None)
            self._homes.pop(key, None)
            if steps:
                self._ensembles[key] = steps
                self._homes[key] = home

    def home(self, key: ModelKey) -> str:
        """The namespace in which an ensemble looks for its steps first."""
        return self._homes.get(key, key.namespace)

    def steps_of(self, key: ModelKey) -> tuple[EnsembleStep, ...]:
        return self._ensembles.get(key, ())

    def step(self, step: EnsembleStep, namespace: str) -> Model | None:
        """The model of a step of an ensemble in `namespace`: there, or else the only one of its name; None without."""
        with self._lock:
            own = self._models.get(step_key(step, namespace))
        if own is not None and own.is_known:
            return own
        known = [model for model in self.named(step.model) if model.is_known and not self._is_private(model.key)]
        return known[0] if len(known) == 1 and not step.namespace else None

    def _is_private(self, key: ModelKey) -> bool:
        """Return True if it came with an ensemble, outside the repositories: no client and no other ensemble can use
        it."""
        return bool(key.namespace) and not self._namespacing

    def dependents(self, key: ModelKey) -> list[Model]:
        """The ensembles that have the model as a step."""
        with self._lock:
            ensembles = list(self._ensembles.items())
        found = []
        for ensemble, steps in ensembles:
            home = self.home(ensemble)
            for step in steps:
                if step.model == key.name:
                    model = self.step(step, home)
                    if key in (model.key if model is not None else None, step_key(step, home)):
                        found.append(self.add(ensemble))
                        break
        return found

    def publish(self) -> None:
        """Let `find` see the versions that serve now. It does not find an ambiguous name."""
        with self._lock:
            models = list(self._models.values())
            self.serving = [model for model in models if model.serving]
            ready: dict[tuple[str, int], ModelVersion] = {}
            for model in self.serving:
                if self._is_private(model.key):
                    continue
                for number in sorted(model.serving):
                    ready[model.key.name, number] = ready[model.key.name, -1] = model.serving[number]
            if self._namespacing:
                names = Counter(model.key.name for model in models if model.is_known)
                ready = {key: version for key, version in ready.items() if names[key[0]] == 1}
            self._ready = ready
            self.generation += 1

    def find(self, name: str, version: int) -> ModelVersion:
        """The ready version asked for, the latest for -1, the held one for the number of a hold.

        Raises ModelNotFound, ModelNotReady, ModelLoading or InvalidRequest.
        """
        found = self._ready.get((name, version))
        if found is None:
            found = self._held.get((name, version))
            if found is None:
                raise self._lookup_error(name, version)
        return found

    def hold(self, name: str, version: int) -> int:
        """Hold the version that `find` finds. Returns the number under which `find` finds it until `release`.

        No client can name such a number: it is below -1. The number is reused after the release, because front ends
        remember what they have written for each number.
        """
        found = self.find(name, version)
        while True:
            try:
                found.hold()
                break
            except ModelNotReady:
                # It may just have been replaced, as in `ModelVersion.submit`.
                refusing, found = found, self.find(name, version)
                if found is refusing:
                    raise
        with self._lock:
            number = _FIRST_HOLD - self._place.index
            while (name, number) in self._held:
                number -= self._place.count
            self._held[name, number] = found
        return number

    def release(self, name: str, number: int) -> None:
        """End a hold. Does nothing if it has ended."""
        with self._lock:
            held = self._held.pop((name, number), None)
        if held is not None:
            held.release()

    def all(self) -> list[Model]:
        """All models by name, as a copy that is safe to iterate while models load."""
        with self._lock:
            return [self._models[key] for key in sorted(self._models)]

    def unsorted(self) -> list[Model]:
        with self._lock:
            return list(self._models.values())

    def unready(self) -> dict[str, str]:
        """The models that are not ready, or whose last load failed, with the reason, which is empty while one loads."""
        return {
            model.key.name: _failure(model)
            for model in self.unsorted()
            if (model.versions or model.problem or model.required) and (model.has_failed or not model.is_ready)
        }

    def names(self) -> set[str]:
        return {model.key.name for model in self.unsorted()}

    def versions(self) -> list[ModelVersion]:
        return [version for model in self.all() for _, version in sorted(model.versions.items())]

    def ready_versions(self, name: str) -> list[int]:
        return sorted(number for model, number in self._ready if model == name and number != -1)

    def loading_error(self, name: str, version: int = -1) -> ModelLoading | None:
        """The refusal of a version that does not serve because the load of the model has not ended; None if it has.

        Until the repositories have been read any name may exist, until the model has been read any version of it.
        """
        if not self.are_listed:
            return ModelLoading("Server not ready", hint="the model repositories have not been read yet", model=name)
        for model in self.named(name):
            if not model.is_awaited or (model.serving and version not in model.loading):
                continue
            if version in model.loading:
                return ModelLoading(f"{_UNKNOWN}'{name}' version {version} is not at ready state", hint=_reasons(model))
            if version == -1 or not model.loading:
                return ModelLoading(f"model '{name}' is still being loaded", hint=_reasons(model) or None, model=name)
        return None

    def _nearest(self, name: str) -> str:
        """A hint with the model that a client may have meant. It is found in a millisecond at most, on the hub's
        thread: not among many models, nor for a long name."""
        known = {model.lower(): model for model, _ in sorted(self._ready)}
        is_quick = len(known) <= _MOST_COMPARED and len(name) <= _LONGEST_COMPARED
        found = difflib.get_close_matches(name.lower(), known, n=1) if is_quick else []
        return f"did you mean '{known[found[0]]}'?" if found else "the repository index lists the models"

    def _lookup_error(self, name: str, version: int) -> ServerError:
        unloaded = self.unloaded(name, version) if self.unloaded is not None and self.are_listed else None
        if unloaded is not None:
            return unloaded
        models = [model for model in self.named(name) if not self._is_private(model.key)]
        models = [model for model in models if model.is_known] or models[:1]
        if len(models) > 1:
            return ambiguous([model.key for model in models])
        loading = self.loading_error(name, version)
        if loading is not None:
            return loading
        model = models[0] if models else None
        if model is not None and model.has_failed and not model.serving and (version == -1 or not model.versions):
            return failed_to_load(model)
        if model is None or not model.versions:
            kind = InvalidRequest if self._namespacing else ModelNotFound
            return kind(f"{_UNKNOWN}'{name}' is not found", hint=self._nearest(name))
        if version == -1:
            return ModelNotFound(f"{_UNKNOWN}'{name}' has no available versions", hint=_reasons(model))
        if version not in model.versions:
            known = ", ".join(map(str, sorted(model.versions)))
            return ModelNotFound(
                f"{_UNKNOWN}'{name}' version {version} is not found", hint=f"the versions are: {known}"
            )
        return ModelNotReady(f"{_UNKNOWN}'{name}' version {version} is not at ready state", hint=_reasons(model))


def ambiguous(keys: Sequence[ModelKey]) -> InvalidRequest:
    return InvalidRequest(
        f"There are {len(keys)} identifiers of model '{keys[0].name}' in global map, model namespace must be "
        "provided to resolve ambiguity.",
        hint=f"it is in {', '.join(key.namespace for key in keys)}",
    )


def failed_to_load(model: Model) -> ModelNotReady:
    """The error for a failed load, with the reason; Triton has the reason only in its log."""
    reason = model.problem or _reasons(model)
    cure = model.hint or "correct it and load it again"
    return ModelNotReady(
        f"model '{model.key.name}' failed to load: {reason}",
        hint=f"{cure}; `trident validate REPO` lists all problems of a repository",
        model=model.key.name,
    )


def _reasons(model: Model) -> str:
    reasons = []
    for number, version in sorted(model.versions.items()):
        reason = version.state.reason or version.reload_failure
        reasons.append(f"version {number} is {version.state.current.value}" + (f": {reason}" if reason else ""))
    return "; ".join(reasons)


def _failure(model: Model) -> str:
    if any(version.state.current is ModelState.LOADING for version in model.versions.values()):
        return ""
    return model.problem or _reasons(model) or "it was not loaded"


# --- the steps of ensembles. Source: docs/spec/repository.md section 1.8.


def step_key(step: EnsembleStep, namespace: str) -> ModelKey:
    """The key of a step's model as an ensemble of `namespace` means it at first."""
    return ModelKey(step.model, step.namespace or namespace)


def find_steps(models: Models, namespace: str, name: str, steps: Sequence[EnsembleStep]) -> list[ModelVersion]:
    """The versions that the steps of an ensemble run on now: that of this name in `namespace`.

    Raises ConfigInvalid with every problem, or OutOfMemory if one of them found no memory.
    """
    key = ModelKey(name, namespace)
    cycle = cycle_from(
        key,
        lambda each: [
            model.key for step in models.steps_of(each) if (model := models.step(step, models.home(each))) is not None
        ],
    )
    if cycle:
        text = f"circular dependency between ensembles: {' -> '.join(key.name for key in cycle)}"
        raise ConfigInvalid(text, hint="an ensemble cannot be a step of itself, nor of one of its steps", model=name)
    found: list[ModelVersion] = []
    missing: list[str] = []
    problems: list[str] = []
    kind: type[ServerError] = ConfigInvalid
    for step in steps:
        model = models.step(step, models.home(key))
        if model is None:
            missing.append(step.model)
            continue
        number = max(model.serving, default=-1) if step.version == -1 else step.version
        version = model.serving.get(number)
        if version is None:
            problems.append(_not_loaded(name, step, model))
            if any(each.ran_out_of_memory for each in model.versions.values()):
                kind = OutOfMemory
        else:
            found.append(version)
    if missing:
        names = ", ".join(sorted(set(missing)))
        problems.insert(0, f"ensemble {name} contains models that are not available or ambiguous: {names}")
    if problems:
        raise kind("; ".join(dict.fromkeys(problems)), model=name)
    return found


def _not_loaded(ensemble: str, step: EnsembleStep, model: Model) -> str:
    depends = f"ensemble '{ensemble}' depends on '{step.model}' "
    if model.serving:
        return f"{depends}whose required version {step.version} is not loaded."
    if model.problem:
        return f"{depends}which is not valid. Model '{step.model}' failed with error: {model.problem}"
    reasons = [version.state.reason for version in model.versions.values() if version.has_failed]
    if reasons:
        return (
            f"{depends}which has no loaded version. Model '{step.model}' loading failed with error: "
            f"{'; '.join(reasons)}"
        )
    return f"{depends}which has no loaded version."


# --- loads

_log = logging.getLogger("trident.lifecycle")

# Where a model of this name is: in no repository, one or several. Raises RepositoryUnavailable.
FindModel = Callable[[str], list[Located]]


class Loads:
    """Loads a model together with what it needs and what needs it: the steps of ensembles, and ensembles of loaded
    models.

    Any number of loader threads at once. No lock is held between the loads of two models."""

    def __init__(self, models: Models, loader: ModelLoader, find_model: FindModel) -> None:
        self._models = models
        self._loader = loader
        self.slots = loader.slots
        self._find_model = find_model
        # Models that came with ensembles, by their location, the ensembles' home.
        self._beside: dict[str, Source] = {}
        self.counts = LoadCounts()

    def load(
        self, located: Located, cause: LoadCause, override: str | None = None, *, beside: Source | None = None
    ) -> None:
        """Load a model that was asked for. Raises a ServerError with Triton's text; see `Model.load`.

        `beside` has the steps of an ensemble that comes with its own models. They belong to it alone.
        """
        self._models.add(located.key).is_requested = True
        if beside is not None:
            self._beside[beside.location] = beside
        home = located.key.namespace if beside is None else beside.location
        self._load(located, cause, override, again=cause is not LoadCause.START, home=home)

    def _load(
        self,
        located: Located,
        cause: LoadCause,
        override: str | None = None,
        *,
        again: bool = False,
        above: tuple[ModelKey, ...] = (),
        home: str = "",
    ) -> None:
        """`above` are the ensembles that wait for the model. Without `again` files that have failed fail at once."""
        model = self._models.add(located.key)
        newer: Located | None = located
        while newer is not None:
            located, newer = newer, None
            try:
                with self.counts.counting(cause):
                    steps = self._loader.reader.steps(located, override)
                    self._models.note_steps(model.key, steps, home or model.key.namespace)
                    if steps:
                        # Until it serves, this load notices a step that is replaced, not the step's own load.
                        model.is_awaited = True
                        self._load_steps(steps, cause, (*above, model.key))
                    model.load(located, cause.value, override, again=again)
            except LoadReplaced as replaced:
                newer, override = replaced.located, None
        if self._is_stale(model) and model.serving:
            self._reload(model, cause)
        self._reload_dependents(model, cause, above)

    def _load_steps(self, steps: Sequence[EnsembleStep], cause: LoadCause, above: tuple[ModelKey, ...]) -> None:
        """Load the models of the steps: in parallel if a request for inference waits."""
        if cause is not LoadCause.DEMAND:
            for step in steps:
                self._load_step(step, cause, above)
            return
        different = {(step.model, step.namespace): step for step in steps}.values()
        threads = [
            threading.Thread(
                target=self._load_step, args=(step, cause, above), name=f"trident-load-{step.model}", daemon=True
            )
            for step in different
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _load_step(self, step: EnsembleStep, cause: LoadCause, above: tuple[ModelKey, ...]) -> None:
        """Load the model of a step, if it does not serve what its repository has. Its failure fails the ensemble."""
        home = self._models.home(above[-1])
        model = self._models.step(step, home)
        if model is not None and (model.key in above or (model.serving and cause is not LoadCause.REQUEST)):
            return
        with suppress(ServerError):
            located = self._find(step, home)
            if located is None or located.key in above:
                return
            is_same = model is not None and model.serving and model.key == located.key
            if model is not None and is_same and model.location != located.source.location:
                return  # a client has given it other files
            again = cause in (LoadCause.REQUEST, LoadCause.DEMAND)
            self._load(located, cause, again=again, above=above)

    def _find(self, step: EnsembleStep, home: str) -> Located | None:
        """The model that the step of an ensemble means: that of its home, or else the only one of the name."""
        beside = self._beside.get(home)
        files = beside.files(step.model) if beside is not None else None
        if beside is not None and files is not None:
            return Located(step_key(step, home), beside, tuple(files))
        located = self._find_model(step.model)
        own = [one for one in located if one.key == step_key(step, home)]
        if len(own) == 1:
            return own[0]
        return located[0] if len(located) == 1 and not step.namespace else None

    def _reload_dependents(self, model: Model, cause: LoadCause, above: tuple[ModelKey, ...] = ()) -> None:
        """Load the ensembles again that run on versions of `model` that were replaced, or that waited for it."""
        for ensemble in self._models.dependents(model.key):
            # One that is being loaded for the first time takes up the versions itself; one that serves must not wait.
            is_left_to_its_load = ensemble.is_awaited and not ensemble.serving
            wanted = self._wanted(ensemble) if is_left_to_its_load else None
            if wanted and any(version.steps and version.steps != wanted for version in ensemble.attempted):
                ensemble.load_anew("a model of its steps has changed")
            if ensemble.key not in above and not is_left_to_its_load and self._is_stale(ensemble):
                self._reload(ensemble, cause)
                self._reload_dependents(ensemble, cause, (*above, model.key))

    def _reload(self, ensemble: Model, cause: LoadCause) -> None:
        _log.info("loading ensemble '%s' again, because a model of its steps has changed", ensemble.key.name)
        with suppress(ServerError):  # it is logged, and the index has it
            ensemble.reload(cause.value)

    def _wanted(self, ensemble: Model) -> tuple[ModelVersion, ...] | None:
        """The versions that the steps of an ensemble mean now; None for another model, or if one does not serve."""
        steps = self._models.steps_of(ensemble.key)
        try:
            return tuple(find_steps(self._models, ensemble.key.namespace, ensemble.key.name, steps)) or None
        except ServerError:
            return None

    def _is_stale(self, ensemble: Model) -> bool:
        """Return True if an ensemble neither runs on the versions that its steps mean now nor has failed with them."""
        wanted = self._wanted(ensemble)
        if wanted is None:
            return False
        if ensemble.serving:
            return any(version.steps != wanted for version in ensemble.serving.values())
        return bool(ensemble.versions) and all(version.steps != wanted for version in ensemble.versions.values())

    def unload(self, model: Model, cause: str, *, unload_dependents: bool = False) -> list[ModelVersion]:
        """Begin to unload a model, and every ensemble that has it as a step.

        With `unload_dependents` the models of an ensemble's own steps are unloaded, too, except those that were loaded
        for themselves and those that another ensemble uses. Returns the versions of these and of the model.
        """
        for ensemble in self._ensembles_on(model, set()):
            name = model.key.name
            text = f"Invalid argument: ensemble '{ensemble.key.name}' depends on '{name}' which has no loaded version."
            if ensemble.serving:
                ensemble.unload(cause, problem=text)
            else:
                ensemble.end_load(text)
        steps, home = self._models.steps_of(model.key), self._models.home(model.key)
        self._models.note_steps(model.key, (), "")
        self._beside.pop(home, None)
        leaving = list(model.serving.values())
        model.unload(cause)
        for step in steps if unload_dependents else ():
            used = self._models.step(step, home)
            if used is None or used.is_requested:
                continue
            if not any(ensemble.serving for ensemble in self._models.dependents(used.key)):
                leaving += self.unload(used, cause, unload_dependents=True)
        return leaving

    def _ensembles_on(self, model: Model, seen: set[ModelKey]) -> Iterator[Model]:
        """The ensembles that need `model`, those that need the most others first."""
        for ensemble in self._models.dependents(model.key):
            if ensemble.key not in seen:
                seen.add(ensemble.key)
                yield from self._ensembles_on(ensemble, seen)
                yield ensemble
