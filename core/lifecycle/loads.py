"""Loads a model together with what it needs and what needs it: the steps of ensembles, and ensembles of loaded models.

A version of an ensemble holds the versions that its steps run on. When one of them is replaced, the ensemble is loaded
again, beside the one that serves; requests in flight end on the versions on which they began. So no request sees the
reload of a step. An ensemble whose step is unloaded is unloaded too, and comes back with the step.
Source: docs/spec/repository.md sections 1.7 and 1.8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from trident.core.config.ensemble import EnsembleStep
from trident.core.errors import ServerError
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.model import Model
from trident.core.lifecycle.models import Models, find_steps, step_key
from trident.core.lifecycle.state import LoadCause, LoadCounts
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.repositories import Located, ModelKey
from trident.core.repository.sources import Source

_log = logging.getLogger("trident.lifecycle")

# Where a model of this name is: in no repository, one or several. Raises RepositoryUnavailable.
FindModel = Callable[[str], list[Located]]


class Loads:
    """Any number of loader threads at once. No lock is held between the loads of two models."""

    def __init__(self, models: Models, loader: ModelLoader, find_model: FindModel) -> None:
        self._models = models
        self._loader = loader
        self._find_model = find_model
        # What ensembles came with, by its location, which is their home.
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
        with self.counts.counting(cause):
            steps = self._loader.steps(located, override)
            self._models.note_steps(model.key, steps, home or model.key.namespace)
            if steps:
                # Until it serves, a step that is replaced leaves it to this load to notice.
                model.is_awaited = True
                for step in steps:
                    self._load_step(step, cause, (*above, model.key))
            model.load(located, cause.value, override, again=again)
        if self._is_stale(model) and model.serving:
            self._reload(model, cause)
        self._reload_dependents(model, cause, above)

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
            again = cause is LoadCause.REQUEST
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
            if ensemble.key not in above and not is_left_to_its_load and self._is_stale(ensemble):
                self._reload(ensemble, cause)
                self._reload_dependents(ensemble, cause, (*above, model.key))

    def _reload(self, ensemble: Model, cause: LoadCause) -> None:
        _log.info("loading ensemble '%s' again, because a model of its steps has changed", ensemble.key.name)
        with suppress(ServerError):  # it is logged, and the index has it
            ensemble.reload(cause.value)

    def _is_stale(self, ensemble: Model) -> bool:
        """Whether an ensemble neither runs on the versions that its steps mean now nor has failed with them; another
        model never is stale.
        """
        steps = self._models.steps_of(ensemble.key)
        if not steps:
            return False
        try:
            wanted = tuple(find_steps(self._models, ensemble.key.namespace, ensemble.key.name, steps))
        except ServerError:
            return False
        if ensemble.serving:
            return any(version.steps != wanted for version in ensemble.serving.values())
        return bool(ensemble.versions) and all(version.steps != wanted for version in ensemble.versions.values())

    def unload(self, model: Model, cause: str, *, unload_dependents: bool = False) -> list[ModelVersion]:
        """Begin to unload a model, and every ensemble that has it as a step.

        With `unload_dependents` the models of an ensemble's own steps are unloaded, too, except those that were loaded
        for themselves and those that another ensemble uses. Returns the versions of these and of the model.
        """
        self._suspend_dependents(model, cause)
        steps, home = self._models.steps_of(model.key), self._models.home(model.key)
        self._models.note_steps(model.key, (), "")
        self._beside.pop(home, None)
        leaving = list(model.serving.values())
        model.unload(cause)
        for step in steps if unload_dependents else ():
            used = self._models.step(step, home)
            if used is not None and not used.is_requested and not self._serves_others(used):
                leaving += self.unload(used, cause, unload_dependents=True)
        return leaving

    def _serves_others(self, model: Model) -> bool:
        return any(ensemble.serving for ensemble in self._models.dependents(model.key))

    def _suspend_dependents(self, model: Model, cause: str) -> None:
        for ensemble in self._ensembles_on(model, set()):
            if ensemble.serving:
                name = model.key.name
                text = (
                    f"Invalid argument: ensemble '{ensemble.key.name}' depends on '{name}' which has no loaded version."
                )
                ensemble.unload(cause, problem=text)

    def _ensembles_on(self, model: Model, seen: set[ModelKey]) -> Iterator[Model]:
        """The ensembles that need `model`, those that need the most others first."""
        for ensemble in self._models.dependents(model.key):
            if ensemble.key not in seen:
                seen.add(ensemble.key)
                yield from self._ensembles_on(ensemble, seen)
                yield ensemble
