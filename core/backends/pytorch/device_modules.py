"""The modules of one version on one device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class DeviceModules:
    """One module for each instance, because a module may keep state; or one for all. Loader threads, several at once.

    `load` loads a module and raises a ServerError. The first one is loaded at once.
    """

    def __init__(self, load: Callable[[], Any], *, shared: bool) -> None:
        self._load = load
        self._shared = shared
        self._taking = threading.Lock()
        self._spare = load()

    def take(self) -> Any:
        """A module for an instance. Raises a ServerError."""
        with self._taking:
            spare = self._spare
            if not self._shared:
                self._spare = None
        return self._load() if spare is None else spare
