"""The shape of a folder that a user uploaded to a platform: a repository, one model, or one model's files.

    repository   ROOT/MODEL/config.pbtxt, ROOT/MODEL/VERSION/model.onnx
    model        ROOT/config.pbtxt, ROOT/VERSION/model.onnx       one model, without a repository around it
    files        ROOT/model.onnx, perhaps ROOT/config.pbtxt       the same, without a version directory

Source: docs/spec/sagemaker.md section B2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from core.config.platforms import PLATFORMS
from core.repository.layout import CONFIG_FILE, NAMED_CONFIGS
from core.repository.versions import version_number

MODEL_FILES = frozenset(row.filename for row in PLATFORMS)


class FolderShape(Enum):
    REPOSITORY = "repository"
    MODEL = "model"
    FILES = "files"


def folder_shape(paths: Collection[str]) -> FolderShape:
    """The shape of a folder with these files; a repository if in doubt, because that is what Triton expects.

    Triton refuses a folder with a config.pbtxt in it and treats every other folder as a repository.
    """
    tops = {path.partition("/")[0] for path in paths}
    versioned = any(_version_and_name(path) for path in paths)
    if CONFIG_FILE in paths:
        return FolderShape.FILES if tops & MODEL_FILES and not versioned else FolderShape.MODEL
    if any(can_be_model(below) for below in _by_folder(paths).values()):
        return FolderShape.REPOSITORY
    if any(found[1] in MODEL_FILES for path in paths if (found := _version_and_name(path))):
        return FolderShape.MODEL
    return FolderShape.FILES if tops & MODEL_FILES else FolderShape.REPOSITORY


def can_be_model(paths: Iterable[str]) -> bool:
    """Whether a folder with these files can be a model: it has a configuration or a version directory."""
    return any(
        path == CONFIG_FILE
        or (path.startswith(f"{NAMED_CONFIGS}/") and path.endswith(".pbtxt"))
        or _version_and_name(path) is not None
        for path in paths
    )


def _version_and_name(path: str) -> tuple[int, str] | None:
    """The version directory that `path` is in, and the name below it; None for a path outside version directories."""
    folder, slash, rest = path.partition("/")
    version = version_number(folder) if slash else None
    return None if version is None else (version, rest.partition("/")[0])


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """The paths below each sub-folder."""
    found: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, rest = path.partition("/")
        if slash:
            found.setdefault(folder, []).append(rest)
    return found
