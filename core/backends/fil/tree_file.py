"""Finds the file of a tree model, and tells what it is. Treelite is not needed for it.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

import json
from pathlib import Path

from core.backends.fil.tree_header import TreeHeader, read_header
from core.backends.fil.tree_settings import DEFAULT_FILES, TreeSettings
from core.backends.file_content import content_hint, start_of
from core.backends.file_origin import written_by
from core.backends.model_path import path_of_model
from core.config.schema import ModelConfig
from core.errors import ModelLoadFailed

# UBJSON objects and texts of JSON begin so; the second byte of UBJSON is a type or the length of a key.
_OBJECT = b"{"


def tree_path(version: Path, config: ModelConfig, settings: TreeSettings) -> Path:
    """The model file in the directory of a version. Raises RepositoryUnavailable with Triton's text."""
    named: str = config.default_model_filename
    # Triton's rule for a backend without a platform fills in this name, which no type of tree model has.
    is_given = named not in ("", f"model.{config.backend}")
    return path_of_model(version, config, named if is_given else DEFAULT_FILES[settings.model_type])


def header_of_file(path: Path, settings: TreeSettings, model: str) -> TreeHeader | None:
    """What the file itself says; None for XGBoost's old binary format. Raises ModelLoadFailed if it cannot be read."""
    model_type = type_of(path, settings)
    if model_type == "xgboost" and content_hint(path) is None:
        return None
    header = read_header(path, model_type)
    if header is None:
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' is not a whole file of type {settings.model_type}",
            hint=hint_of(path, settings, "or of another version than is known here"),
            model=model,
        )
    return header


def type_of(path: Path, settings: TreeSettings) -> str:
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


def hint_of(path: Path, settings: TreeSettings, other_cause: str) -> str:
    """What to do about a file that cannot be read."""
    return content_hint(path) or (
        f"the file{written_by(path)} is not of type {settings.model_type}, or incomplete, {other_cause}: set "
        f"model_type to the format that it was saved in ({', '.join(DEFAULT_FILES)}), or compare it with the original"
    )
