"""The trees of a file, read and run by Treelite.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import treelite

from core.backends.fil.scores import answers
from core.backends.fil.tree_file import hint_of, type_of
from core.backends.fil.tree_header import TreeHeader
from core.backends.fil.tree_prediction import TreePrediction
from core.backends.fil.tree_settings import TreeSettings
from core.backends.in_process.instance import Failures, Run
from core.errors import BackendFailed, ModelLoadFailed, ServerError
from core.inference.tensors import Array

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
    """What Treelite says of the trees that it has read."""
    header = trees.get_header_accessor()
    return TreeHeader(
        int(trees.num_feature), int(header.get_field("num_class")[0]), int(header.get_field("num_target")[0])
    )


def run_of(trees: Any, settings: TreeSettings, tensor: str, width: int, threads: int) -> Run:
    """What an instance runs: the rows of the input `tensor`, `width` values for each, on at most `threads` threads."""
    prediction = TreePrediction(trees, threads)

    def run(names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        return [answers(prediction.scores(feed[tensor]), settings, width)]

    return run


def _first_lines(text: str) -> str:
    """Treelite's message without its time and the native stack that may follow."""
    head = text.partition("\nStack trace")[0].strip()
    return head.partition("] ")[2] if head.startswith("[") and "] " in head else head


def _error_of(exc: Exception, model: str) -> ServerError:
    return BackendFailed(str(exc), model=model)


FAILURES = Failures((treelite.TreeliteError, ValueError), _error_of)
