"""The weights of one version, once for each device that its instances are on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from core.config.placement import Placement

Weights = TypeVar("Weights")


class DeviceWeights(Generic[Weights]):
    """Loads the weights for a device when the first instance on it is made. Loader threads, several at once.

    `load` loads them onto the device of a placement, and raises a ServerError. `loaded` are those that are there, by
    device (`Placement.device`).
    """

    def __init__(self, load: Callable[[Placement], Weights], loaded: Mapping[str, Weights]) -> None:
        self._load = load
        # The dictionary is read without the lock, so it is replaced under the lock and never changed.
        self._changing = threading.Lock()
        self._loaded = dict(loaded)
        self._closed = False

    @property
    def loaded(self) -> Mapping[str, Weights]:
        """Those that are there, by device."""
        return self._loaded

    def of(self, placement: Placement) -> Weights:
        """The weights on the device of `placement`. If several threads ask for new ones, one of them loads them."""
        device = placement.device
        if device in self._loaded:
            return self._loaded[device]
        with self._changing:
            if self._closed:
                raise RuntimeError("the model is closed")
            if device not in self._loaded:
                self._loaded = {**self._loaded, device: self._load(placement)}
            return self._loaded[device]

    def retain(self, devices: Iterable[str]) -> None:
        """Drop the weights on all devices except `devices`. Who uses some keeps them until it closes."""
        kept = frozenset(devices)
        with self._changing:
            self._loaded = {device: weights for device, weights in self._loaded.items() if device in kept}

    def close(self) -> None:
        with self._changing:
            self._closed = True
            self._loaded = {}
