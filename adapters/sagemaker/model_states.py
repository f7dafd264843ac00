r"""The states of a multi-model endpoint's models, and the invocations that an unload waits for.

    (unknown) -> LOADING -> LOADED -> UNLOADING -> (unknown)
                    \-> (unknown) (the load failed)

Source: docs/spec/sagemaker.md sections A5 and B3.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from trident.core.errors import AlreadyLoaded, ModelNotFound
from trident.core.observability.log import escaped


class State(Enum):
    LOADING = "being loaded"
    LOADED = "loaded"
    UNLOADING = "being unloaded"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`name` and `url` as the platform sent them. The engine serves the model under the same name."""

    name: str
    url: str


class ModelStates(Protocol):
    """Changes to one model wait for each other; changes to different models do not.

    The changes block, and are made on native threads; `begin_invocation` and `end_invocation` do not block.
    """

    def begin_load(self, name: str, url: str) -> None:
        """(unknown) -> LOADING. Raises AlreadyLoaded.

        Waits for the end of an unload: after the answer "already loaded" the platform would send requests.
        """

    def begin_unload(self, name: str) -> LoadedModel | None:
        """LOADED -> UNLOADING, or None if another thread has unloaded it meanwhile. Waits for the end of a load.

        Raises ModelNotFound.
        """

    def settle(self, name: str, model: LoadedModel | None) -> None:
        """End the change that this caller began: `model` is loaded, or with None the name is unknown."""

    def get(self, name: str) -> LoadedModel:
        """The model if it serves. Raises ModelNotFound for one that is unknown, being loaded or being unloaded."""
        ...

    def loaded(self) -> Mapping[str, LoadedModel]:
        """The models that serve, by name."""
        ...

    def begin_invocation(self, name: str) -> LoadedModel:
        """As `get`; until `end_invocation`, `await_invocations` waits for the caller."""
        ...

    def end_invocation(self, name: str) -> None: ...

    def await_invocations(self, name: str) -> None:
        """Wait for the invocations that began before the model's unload did; no other can begin."""


class OwnModelStates:
    """The states of a container in one process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[str, State] = {}
        # The models in state LOADED. Written under the lock; `get` reads without it.
        self._loaded: dict[str, LoadedModel] = {}
        # A separate lock that is held for a few instructions only, because the hub takes it.
        self._answered = threading.Condition()
        self._invocations: Counter[str] = Counter()

    def begin_load(self, name: str, url: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._states.get(name) is not State.UNLOADING)
            state = self._states.get(name)
            if state is not None:
                raise already_loaded(name, state)
            self._states[name] = State.LOADING

    def begin_unload(self, name: str) -> LoadedModel | None:
        with self._changed:
            if self._states.get(name) is State.UNLOADING:
                self._changed.wait_for(lambda: self._states.get(name) is not State.UNLOADING)
                if self._states.get(name) is not State.LOADED:
                    return None
            self._changed.wait_for(lambda: self._states.get(name) is not State.LOADING)
            state = self._states.get(name)
            if state is not State.LOADED:
                raise not_loaded(name, state)
            self._states[name] = State.UNLOADING
            return self._loaded.pop(name)

    def settle(self, name: str, model: LoadedModel | None) -> None:
        with self._changed:
            if model is None:
                del self._states[name]
            else:
                self._loaded[name] = model
                self._states[name] = State.LOADED
            self._changed.notify_all()

    def get(self, name: str) -> LoadedModel:
        model = self._loaded.get(name)
        if model is None:
            raise not_loaded(name, self._states.get(name))
        return model

    def loaded(self) -> Mapping[str, LoadedModel]:
        with self._changed:
            return dict(self._loaded)

    def begin_invocation(self, name: str) -> LoadedModel:
        with self._answered:
            model = self.get(name)
            self._invocations[name] += 1
        return model

    def end_invocation(self, name: str) -> None:
        with self._answered:
            self._invocations[name] -= 1
            if not self._invocations[name]:
                del self._invocations[name]
                self._answered.notify_all()

    def await_invocations(self, name: str) -> None:
        with self._answered:
            self._answered.wait_for(lambda: name not in self._invocations)


def already_loaded(name: str, state: State) -> AlreadyLoaded:
    return AlreadyLoaded(f"model '{escaped(name)}' is {state.value} already", model=name)


def not_loaded(name: str, state: State | None) -> ModelNotFound:
    hint = "load it with POST /models" if state is None else f"it is {state.value}"
    return ModelNotFound(f"model '{escaped(name)}' is not loaded", hint=hint, model=name)
