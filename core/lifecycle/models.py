"""The models that the server knows, and the lookup of the version that a request names.

Source: docs/spec/http.md section 3 (lookup texts), docs/spec/repository.md sections 1.3 and 1.5.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from trident.core.config.ensemble import EnsembleStep
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoading, ModelNotFound, ModelNotReady, ServerError
from trident.core.lifecycle.model import Model
from trident.core.lifecycle.options import EnginePlace
from trident.core.lifecycle.state import ModelState, Phase, ServingPhase
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.repositories import ModelKey

_UNKNOWN: Final = "Request for unknown model: "
_FIRST_HOLD: Final = -2
_ALONE: Final = EnginePlace()


class Models:
    """All models. Loader threads change them under a lock; any thread calls `find`, which takes no lock.

    With `namespacing` several models may have the same name, and an unknown name is an invalid request. `are_listed`:
    the repositories have been read, so that a name which is not among the models does not exist.
    """

    def __init__(
        self,
        make: Callable[[ModelKey, Models], Model],
        *,
        namespacing: bool = False,
        place: EnginePlace = _ALONE,
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
        # Read by `find`. Replaced as a whole and never changed, so that readers need no lock.
        self._ready: dict[tuple[str, int], ModelVersion] = {}
        # The versions that callers hold, by name and number. Changed under the lock, read without it.
        self._held: dict[tuple[str, int], ModelVersion] = {}
        # Changes with every `publish`, for callers that remember what they found.
        self.generation = 0

    def add(self, key: ModelKey) -> Model:
        """The model of `key`, made if it is new."""
        with self._lock:
            if key not in self._models:
                self._models[key] = self._make(key, self)
            return self._models[key]

    def named(self, name: str) -> list[Model]:
        """All models of that name; several only with namespacing."""
        with self._lock:
            return [model for key, model in self._models.items() if key.name == name]

    def note_steps(self, key: ModelKey, steps: tuple[EnsembleStep, ...], home: str) -> None:
        """The model is an ensemble of these steps, or without any of them none. Those of an ensemble that was unloaded
        because of one of its steps stay: it serves again when it can. `home` is the namespace of its steps.
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
        """The steps of an ensemble; empty for another model."""
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
        """Whether it came with an ensemble, outside the repositories: no client and no other ensemble knows it."""
        return bool(key.namespace) and not self._namespacing

    def dependents(self, key: ModelKey) -> list[Model]:
        """The ensembles that have the model as a step."""
        with self._lock:
            ensembles = list(self._ensembles.items())
        found = []
        for ensemble, steps in ensembles:
            same = [step for step in steps if step.model == key.name]
            if any(self._means(step, self.home(ensemble), key) for step in same):
                found.append(self.add(ensemble))
        return found

    def _means(self, step: EnsembleStep, namespace: str, key: ModelKey) -> bool:
        """Whether a step of an ensemble in `namespace` runs on the model `key`, known or not."""
        model = self.step(step, namespace)
        return key in (model.key if model is not None else None, step_key(step, namespace))

    def publish(self) -> None:
        """Let `find` see the versions that serve now. It does not find an ambiguous name."""
        with self._lock:
            models = list(self._models.values())
            ready: dict[tuple[str, int], ModelVersion] = {}
            for model in models:
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

        No client can name such a number: it is below -1. It is used again after the release, as front ends remember
        what they have written for each number.
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

    def _all(self) -> list[Model]:
        with self._lock:
            return list(self._models.values())

    def unready(self) -> dict[str, str]:
        """The models that are not ready, or whose last load failed, with the reason, which is empty while one loads."""
        return {model.key.name: _failure(model) for model in self._all() if model.has_failed or not model.is_ready}

    def names(self) -> set[str]:
        return {model.key.name for model in self._all()}

    def versions(self) -> list[ModelVersion]:
        """All versions in the repository index, by model and number."""
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

    def _lookup_error(self, name: str, version: int) -> ServerError:
        models = [model for model in self.named(name) if not self._is_private(model.key)]
        models = [model for model in models if model.is_known] or models[:1]
        if len(models) > 1:
            return InvalidRequest(
                f"There are {len(models)} identifiers of model '{name}' in global map, model namespace must be "
                "provided to resolve ambiguity.",
                hint=f"it is in {', '.join(model.key.namespace for model in models)}",
            )
        loading = self.loading_error(name, version)
        if loading is not None:
            return loading
        model = models[0] if models else None
        if model is not None and model.has_failed and not model.serving and (version == -1 or not model.versions):
            return _failed_to_load(model)
        if model is None or not model.versions:
            kind = InvalidRequest if self._namespacing else ModelNotFound
            return kind(f"{_UNKNOWN}'{name}' is not found")
        if version == -1:
            return ModelNotFound(f"{_UNKNOWN}'{name}' has no available versions", hint=_reasons(model))
        if version not in model.versions:
            known = ", ".join(map(str, sorted(model.versions)))
            return ModelNotFound(
                f"{_UNKNOWN}'{name}' version {version} is not found", hint=f"the versions are: {known}"
            )
        return ModelNotReady(f"{_UNKNOWN}'{name}' version {version} is not at ready state", hint=_reasons(model))


def _failed_to_load(model: Model) -> ModelNotReady:
    """Triton says that it is not found or has no available versions, and has the reason only in its log."""
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

    Raises ConfigInvalid with every problem.
    """
    key = ModelKey(name, namespace)
    cycle = cycle_from(key, models)
    if cycle:
        text = f"circular dependency between ensembles: {' -> '.join(key.name for key in cycle)}"
        raise ConfigInvalid(text, hint="an ensemble cannot be a step of itself, nor of one of its steps", model=name)
    found: list[ModelVersion] = []
    missing: list[str] = []
    problems: list[str] = []
    for step in steps:
        model = models.step(step, models.home(key))
        if model is None:
            missing.append(step.model)
            continue
        number = max(model.serving, default=-1) if step.version == -1 else step.version
        version = model.serving.get(number)
        if version is None:
            problems.append(_not_loaded(name, step, model))
        else:
            found.append(version)
    if missing:
        names = ", ".join(sorted(set(missing)))
        problems.insert(0, f"ensemble {name} contains models that are not available or ambiguous: {names}")
    if problems:
        raise ConfigInvalid("; ".join(dict.fromkeys(problems)), model=name)
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


def cycle_from(key: ModelKey, models: Models) -> tuple[ModelKey, ...]:
    """The way from the ensemble `key` through steps back to it, with it at both ends; empty if there is none."""
    seen: set[ModelKey] = set()
    ways: list[tuple[ModelKey, ...]] = [(key,)]
    while ways:
        way = ways.pop()
        for step in models.steps_of(way[-1]):
            model = models.step(step, models.home(way[-1]))
            if model is None:
                continue
            if model.key == key:
                return (*way, key)
            if model.key not in seen:
                seen.add(model.key)
                ways.append((*way, model.key))
    return ()


class StartProgress:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._loading: list[str] = []
        self._done = 0
        self._total = 0
        self._failures: dict[str, str] = {}
        self._listed = threading.Event()
        self._ended = threading.Event()

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def has_ended(self) -> bool:
        """Whether all models of the start were loaded or failed."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Whether the start ended within `timeout_s` seconds. Blocks."""
        return self._ended.wait(timeout_s)

    def wait_listed(self, timeout_s: float) -> bool:
        """Whether the repositories were read, or the start ended, within `timeout_s` seconds. Blocks."""
        return self._listed.wait(timeout_s)

    def begin(self, total: int) -> None:
        """STARTING -> LOADING: the start has `total` models."""
        with self._lock:
            self._total = total
            if self._phase is Phase.STARTING:
                self._phase = Phase.LOADING
        self._listed.set()

    def begin_model(self, name: str) -> None:
        with self._lock:
            self._loading.append(name)

    def end_model(self, name: str, failure: str) -> None:
        """`failure` is why the model could not be loaded, or ""."""
        with self._lock:
            self._loading.remove(name)
            if failure:
                self._failures[name] = failure
            else:
                self._done += 1

    def fail(self, what: str, reason: str) -> None:
        """Record a failure of a model, or of anything else that the start needs."""
        with self._lock:
            self._failures[what] = reason

    def end(self) -> None:
        """LOADING -> READY, or FAILED if anything failed."""
        with self._lock:
            if self._phase is not Phase.EXITING:
                self._phase = Phase.FAILED if self._failures else Phase.READY
        self._listed.set()
        self._ended.set()

    def exit(self) -> None:
        """-> EXITING, from any phase."""
        with self._lock:
            self._phase = Phase.EXITING

    def serving_phase(self, models: Models) -> ServingPhase:
        """The phase in detail.

        `done` counts the models of the start that were loaded, not those that failed. After the start, `model` and
        `failures` are the models that are not what their repository has now, whether or
        not they keep the server unready, and what the start did not find.
        That looks at every model, so it is not for a hot path.
        """
        with self._lock:
            name, loading, failures = self._phase, self._loading[:1], dict(self._failures)
            done, total = self._done, self._total
        if self.has_ended:
            # A model that failed at the start may serve by now.
            unready = models.unready()
            known = models.names()
            done += sum(what in known and what not in unready for what in failures)
            loading = [model for model, reason in unready.items() if not reason]
            failures = {what: reason for what, reason in failures.items() if what not in known}
            failures |= {model: reason for model, reason in unready.items() if reason}
        return ServingPhase(name=name, model=loading[0] if loading else "", done=done, total=total, failures=failures)
