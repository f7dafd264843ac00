"""Finds and reads the file of a tree model.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import treelite

from core.backends.fil.tree_settings import DEFAULT_FILES, TreeSettings
from core.backends.file_content import content_hint, start_of
from core.backends.file_origin import written_by
from core.config.paths import is_plain
from core.config.schema import ModelConfig
from core.errors import ModelLoadFailed, RepositoryUnavailable

# UBJSON objects and texts of JSON begin so; the second byte of UBJSON is a type or the length of a key.
_OBJECT = b"{"

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


def tree_path(version: Path, config: ModelConfig, settings: TreeSettings) -> Path:
    """The model file in the directory of a version. Raises RepositoryUnavailable with Triton's text."""
    name = _file_name(config, settings)
    path = version / name
    if not is_plain(name) or not path.is_file():
        raise RepositoryUnavailable(
            f"unable to find '{path}' for model '{config.name}'",
            hint=f"put the model of type {settings.model_type} there, or name its file in default_model_filename",
            model=config.name,
        )
    return path


def read_trees(path: Path, settings: TreeSettings, model: str) -> Any:
    """The Treelite model in the file at `path`. Raises ModelLoadFailed with Treelite's text."""
    try:
        return _READERS[_type_of(path, settings)](str(path), settings.allows_unknown_fields)
    except treelite.TreeliteError as exc:
        raise ModelLoadFailed(
            f"failed to load model '{model}': {_first_lines(str(exc))}", hint=_hint(path, settings), model=model
        ) from exc


def _file_name(config: ModelConfig, settings: TreeSettings) -> str:
    named: str = config.default_model_filename
    # Triton's rule for a backend without a platform fills in this name, which no type of tree model has.
    return DEFAULT_FILES[settings.model_type] if named in ("", f"model.{config.backend}") else named


def _type_of(path: Path, settings: TreeSettings) -> str:
    """The type by the file's content where XGBoost writes another format than the type says.

    XGBoost no longer writes its binary format: what it saves as `.model` is UBJSON.
    """
    if settings.model_type != "xgboost" or start_of(path, 1) != _OBJECT:
        return settings.model_type
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return "xgboost_ubj"
    return "xgboost_json"


def _hint(path: Path, settings: TreeSettings) -> str:
    return content_hint(path) or (
        f"the file{written_by(path)} is not of type {settings.model_type}, or incomplete, or newer than "
        f"Treelite {treelite.__version__}, which is installed: set model_type to the format that it was saved in "
        f"({', '.join(DEFAULT_FILES)}), or compare it with the original"
    )


def _first_lines(text: str) -> str:
    """Treelite's message without its time and the native stack that may follow."""
    head = text.partition("\nStack trace")[0].strip()
    return head.partition("] ")[2] if head.startswith("[") and "] " in head else head
