"""Memory in which the inputs of a batch are put together."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from core.inference.tensors import Array, Shape
from core.memo import Memo

# Called with an input's name and its new buffer, or None when the input has no buffer any more.
OnBuffer = Callable[[str, Array | None], None]


class StagingBuffer:
    """Contiguous memory of one datatype, as large as the largest batch so far. One thread at a time."""

    def __init__(self, name: str, dtype: np.dtype[Any], on_buffer: OnBuffer | None = None) -> None:
        self._name = name
        self._flat: Array = np.empty(0, dtype)
        self._views: Memo[Shape, Array] = Memo(256)
        self._on_buffer = on_buffer

    def view(self, shape: Shape) -> Array:
        """The beginning of the buffer as an array of `shape`. All views share the memory."""
        view = self._views.get(shape)
        return self._make_view(shape) if view is None else view

    def close(self) -> None:
        """Free the memory. The next view makes new memory."""
        if self._on_buffer is not None and self._flat.size:
            self._on_buffer(self._name, None)
        self._views.clear()
        self._flat = np.empty(0, self._flat.dtype)

    def _make_view(self, shape: Shape) -> Array:
        count = prod(shape)
        if count > self._flat.size:
            flat = np.empty(count, self._flat.dtype)
            self.close()
            self._flat = flat
            if self._on_buffer is not None:
                self._on_buffer(self._name, flat)
        view = self._views[shape] = self._flat[:count].reshape(shape)
        return view
