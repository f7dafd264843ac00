"""How a front end finds the model of a request, which it may have to ask another process for.

ModelLookup    the protocol: the engine, or
└── ModelsAtHand   the models that the engine knows in this process
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trident.core.engine.protocol import ServedModel

if TYPE_CHECKING:
    from trident.core.engine.protocol import Engine


class ModelNotAtHand(Exception):
    """The engine's process has to be asked for the model, which takes a greenlet or a thread that can wait."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, version)
        self.name = name
        self.version = version


class ModelLookup(Protocol):
    """A codec looks a request's model up in it. The engine is one."""

    __slots__ = ()

    def model(self, name: str, version: int = -1) -> ServedModel:
        """As `Engine.model`."""


class ModelsAtHand(ModelLookup):
    """Finds models without waiting: any code on the hub may use it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def model(self, name: str, version: int = -1) -> ServedModel:
        """Raises ModelNotAtHand where `Engine.model` would have to wait, and its errors otherwise."""
        found = self._engine.model_nowait(name, version)
        if found is None:
            raise ModelNotAtHand(name, version)
        return found
