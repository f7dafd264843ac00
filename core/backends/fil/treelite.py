"""Predictions of Treelite's C library, called with what its Python function makes anew for each call.

`treelite.gtil.predict` takes 17 µs to make a configuration and to ask for shapes, which is as long as a small model
takes. Source: Treelite's `c_api.h`, "General Tree Inference Library".
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import treelite
from treelite.libpath import find_lib_path

from trident.core.backends.fil.backend import TreeHeader, TreeSettings, answers, hint_of, type_of
from trident.core.backends.in_process import Failures, Run
from trident.core.errors import BackendFailed, ModelLoadFailed, ServerError
from trident.core.inference.tensors import Array

# Fewer visits than these, a visit being one row in one tree (35 to 70 ns), are not worth another thread.
_VISITS_PER_THREAD = 4000


def _library() -> Any:
    """The library that the package has loaded, with functions of our own: a process loads a file once."""
    library = ctypes.CDLL(str(find_lib_path()[0]))
    pointer, count, text = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p
    library.TreeliteGetLastError.restype = text
    library.TreeliteGTILParseConfig.argtypes = [text, ctypes.POINTER(pointer)]
    library.TreeliteGTILDeleteConfig.argtypes = [pointer]
    library.TreeliteGTILGetOutputShape.argtypes = [
        pointer,
        count,
        pointer,
        ctypes.POINTER(ctypes.POINTER(count)),
        ctypes.POINTER(count),
    ]
    library.TreeliteGTILPredict.argtypes = [pointer, pointer, text, count, pointer, pointer]
    return library


_LIBRARY = _library()


class TreePrediction:
    """The scores of rows for one instance of a model. `threads` are the most that compute. Instance thread.

    Rows are divided among threads here: those of OpenMP, which Treelite would divide them among, wait for each other
    by spinning, so that ten times the time is computed when other processes want the cores too. Besides, it is an error
    to want more of them than another library allows, as PyTorch does for its own models.
    """

    def __init__(self, trees: Any, threads: int) -> None:
        self._trees = trees
        self._features = int(trees.num_feature)
        self._visits = max(1, int(trees.num_tree))
        self._input_type = str(trees.input_type).encode()
        self._input_dtype, self._output_dtype = np.dtype(trees.input_type), np.dtype(trees.output_type)
        self._config = _Config()
        self._shape = _row_shape(trees, self._config)
        self._threads = threads
        # It starts them when they are needed, and they end when it is dropped.
        self._others = ThreadPoolExecutor(threads - 1, "trees") if threads > 1 else None

    def scores(self, rows: Array) -> Array:
        """The scores (rows, classes) of `rows` (rows, features). Raises TreeliteError."""
        # The library reads `features` values of each row, in order and of its own datatype.
        rows = np.ascontiguousarray(rows, self._input_dtype).reshape(-1, self._features)
        count = len(rows)
        scores: Array = np.zeros((count, *self._shape), self._output_dtype)
        used = min(self._threads, count, 1 + count * self._visits // _VISITS_PER_THREAD)
        if self._others is None or used <= 1:
            self._predict(rows, scores)
        else:
            ends = [count * number // used for number in range(used + 1)]
            parts = [(rows[start:end], scores[start:end]) for start, end in pairwise(ends)]
            others = [self._others.submit(self._predict, *part) for part in parts[1:]]
            try:
                self._predict(*parts[0])
            finally:
                wait(others)
            for other in others:
                other.result()
        # Rows, targets, classes; the backend lets no second target pass.
        return scores[:, 0, :]

    def _predict(self, rows: Array, scores: Array) -> None:
        """Write the scores of `rows`. Any thread; the interpreter's lock is released meanwhile."""
        _check(
            _LIBRARY.TreeliteGTILPredict(
                self._trees.handle,
                rows.ctypes.data,
                self._input_type,
                len(rows),
                scores.ctypes.data,
                self._config.handle,
            )
        )


class _Config:
    """How to predict: on the calling thread, and as the model's objective says."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        text = json.dumps({"predict_type": "default", "nthread": 1}).encode()
        _check(_LIBRARY.TreeliteGTILParseConfig(text, ctypes.byref(self.handle)))

    def __del__(self) -> None:
        if self.handle:
            _LIBRARY.TreeliteGTILDeleteConfig(self.handle)


def _row_shape(trees: Any, config: _Config) -> tuple[int, ...]:
    """The targets and classes of the scores of a row."""
    sizes, dimensions = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64()
    _check(
        _LIBRARY.TreeliteGTILGetOutputShape(
            trees.handle, 1, config.handle, ctypes.byref(sizes), ctypes.byref(dimensions)
        )
    )
    return tuple(int(size) for size in sizes[1 : dimensions.value])


def _check(status: int) -> None:
    if status:
        raise treelite.TreeliteError(_LIBRARY.TreeliteGetLastError().decode(errors="replace"))


VERSION: str = treelite.__version__

Read = Callable[[str, bool], Any]


def _xgboost(format_choice: str) -> Read:
    return lambda path, lenient: treelite.frontend.load_xgboost_model(
        path, format_choice=format_choice, allow_unknown_field=lenient
    )


_READERS: Mapping[str, Read] = {
    "xgboost": lambda path, lenient: treelite.frontend.load_xgboost_model_legacy_binary(path),
    "xgboost_json": _xgboost("json"),
    "xgboost_ubj": _xgboost("ubjson"),
    "lightgbm": lambda path, lenient: treelite.frontend.load_lightgbm_model(path),
    "treelite_checkpoint": lambda path, lenient: treelite.Model.deserialize(path),
}


def read_trees(path: Path, settings: TreeSettings, model: str) -> Any:
    """The Treelite model in the file at `path`. Raises ModelLoadFailed with Treelite's text."""
    try:
        return _READERS[type_of(path, settings)](str(path), settings.allows_unknown_fields)
    except treelite.TreeliteError as exc:
        hint = hint_of(path, settings, f"or newer than Treelite {VERSION}, which is installed")
        raise ModelLoadFailed(
            f"failed to load model '{model}': {_first_lines(str(exc))}", hint=hint, model=model
        ) from exc


def header_of(trees: Any) -> TreeHeader:
    """The header of trees that Treelite has read."""
    header = trees.get_header_accessor()
    return TreeHeader(
        int(trees.num_feature), int(header.get_field("num_class")[0]), int(header.get_field("num_target")[0])
    )


def run_of(trees: Any, settings: TreeSettings, tensor: str, width: int, threads: int) -> Run:
    """Make the run of an instance: `width` values for each row of the input `tensor`, on at most `threads` threads."""
    prediction = TreePrediction(trees, threads)

    def run(names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        return [answers(prediction.scores(feed[tensor]), settings, width)]

    return run


def _first_lines(text: str) -> str:
    """Treelite's message without its time and the native stack that may follow."""
    head = text.partition("\nStack trace")[0].strip()
    return head.partition("] ")[2] if head.startswith("[") and "] " in head else head


def _error_of(exc: Exception, model: str) -> ServerError:
    return BackendFailed(str(exc))


FAILURES = Failures((treelite.TreeliteError, ValueError), _error_of)
