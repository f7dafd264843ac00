"""Hints about mistakes in the layout of a repository or a model: what was found, what is expected, what to do.

The server's log, the answer to a load request and `trident validate` have these texts as the hints of their errors.
Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trident.core.config.platforms import PLATFORMS, Platform
from trident.core.config.schema import ModelConfig
from trident.core.repository.repository import CONFIG_FILE, RESERVED_FOLDERS, ModelDirectory, version_number

_MOST_NAMES = 5
_FILES = tuple(dict.fromkeys(row.filename for row in PLATFORMS))
_FIRST = "1"
_PICKLE = "export the model to ONNX, or load it in a model.py of the backend python"
_TREES = 'name the backend and the type of its file: backend: "fil" and parameters { key: "model_type" … }'
# What to do with files that other programs write, by the end of their names.
EXPORTS = {
    ".joblib": _PICKLE,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".pth": "save the model as TorchScript in model.pt, or export it to ONNX",
    ".ckpt": "save the model as TorchScript in model.pt, or export it to ONNX",
    ".safetensors": "it holds only weights: export the model to ONNX, or save it as TorchScript in model.pt",
    ".h5": "export the model as a SavedModel, in the folder model.savedmodel",
    ".keras": "export the model as a SavedModel, in the folder model.savedmodel",
    ".tflite": "convert the model to ONNX, or take the SavedModel that it was made from",
    ".engine": "rename it to model.plan",
    ".json": _TREES,
    ".ubj": _TREES,
    ".txt": _TREES,
}


class _ModelFile(NamedTuple):
    """A file that may be the model, by its name."""

    name: str
    row: Platform


def layout_hint(directory: ModelDirectory, config: ModelConfig) -> str:
    """Return what a model's folder has, what it should have, and the missing step; "" if the folder cannot be read.

    For a model that has no version, or whose backend cannot be told; `config` is as far as it could be completed.
    """
    try:
        folders = {name: directory.names_in(name) for name in directory.folders() if name not in RESERVED_FOLDERS}
        files = [entry.name for entry in os.scandir(directory.path) if entry.name not in folders]
    except OSError:
        return ""
    model = directory.name
    versions = [name for name in folders if version_number(name) is not None]
    if not versions and version_number(model) is not None and CONFIG_FILE not in files:
        return (
            "found the folder of one model, expected a folder of models: name the folder around it as the repository, "
            "or serve it with --single-model=NAME"
        )
    if config.platform and not config.backend:
        return _platform_hint(model, config.platform, folders)
    first = min(folders, default="")
    if versions and first not in versions and not config.backend:
        return (
            f"found the folder {model}/{first}, expected a version there, since the first folder tells the backend: "
            f"move it away, or write the backend into {model}/{CONFIG_FILE}"
        )
    if versions:
        first = min(versions)
        return _version_hint(f"{model}/{first}", folders[first], config, config.default_model_filename)
    return _unversioned_hint(model, files, folders, config)


def missing_file_hint(version: Path, config: ModelConfig, wanted: str) -> str | None:
    """Return the hint for a version folder in which the backend did not find the file or folder `wanted`."""
    try:
        names = os.listdir(version)
    except OSError:
        return None
    return _version_hint(f"{config.name}/{version.name}", names, config, wanted)


def no_models_hint(location: str) -> str:
    """Return the hint for a repository without model folders. Only a local one is examined."""
    expected = "expected MODEL/1/model.onnx"
    try:
        names = sorted(name for name in os.listdir(location) if not name.startswith("."))
    except OSError:
        return f"{expected}: a folder for each model, with a folder for each version"
    found = _best(names, PLATFORMS)
    if found is not None or CONFIG_FILE in names:
        what = found.name if found is not None else CONFIG_FILE
        return (
            f"found {what}, {expected}: move it into a folder for the model, with a folder for the version, or serve "
            "it with --single-model=NAME"
        )
    return f"found {_listed(names)}, {expected}: make a folder for each model, with a folder for each version"


def nearest_platform(text: str) -> str:
    """The platform that a wrong name of one is most likely to mean; "" if none is near."""
    names = [row.name for row in PLATFORMS if row.name]
    folded = text.lower()
    inside = [row.name for row in PLATFORMS if row.name and folded and (folded in row.name or folded == row.backend)]
    return next(iter(inside or difflib.get_close_matches(folded, names, n=1)), "")


def _rows(config: ModelConfig) -> list[Platform]:
    return [row for row in PLATFORMS if config.backend in ("", row.backend)]


def _version_hint(place: str, names: Collection[str], config: ModelConfig, wanted: str) -> str:
    """For a version folder whose model cannot be found."""
    rows = _rows(config)
    expected = f"expected {place}/{wanted}" if wanted else f"expected one of {', '.join(_FILES)}"
    if not names:
        return f"found nothing in {place}, {expected}: put the model there"
    found = _best(names, rows) or (_best(names, PLATFORMS) if config.backend else None)
    if found is not None and found.row not in rows and rows:
        return f'found {place}/{found.name}, {expected}: write backend: "{found.row.backend}" for it, or replace it'
    # The only file that is there must be meant, whatever it is called.
    name = found.name if found is not None else min(names) if config.backend and len(names) == 1 else ""
    if not name:
        other = next((name for name in sorted(names) if _ending(name) in EXPORTS), "")
        if other and not config.backend:
            return f"found {place}/{other}, which no backend takes by its name, {expected}: {EXPORTS[_ending(other)]}"
        return f"found {_listed(names)} in {place}, {expected}: put the model there"
    wanted = wanted or (found.row.filename if found is not None else "")
    step = "rename it"
    if name.lower() != wanted.lower():
        backend = "" if config.backend or found is None else f'backend: "{found.row.backend}" and '
        step += f', or write {backend}default_model_filename: "{name}" into {CONFIG_FILE}'
    return f"found {place}/{name}, expected {place}/{wanted}: {step}"


def _unversioned_hint(
    model: str, files: Sequence[str], folders: Mapping[str, Collection[str]], config: ModelConfig
) -> str:
    """For a model without a version folder."""
    rows = _rows(config)
    wanted = config.default_model_filename or (rows[0].filename if config.backend and rows else "")
    number = next((name for name in files if version_number(name) is not None), "")
    if number:
        return f"found the file {model}/{number}, expected a folder of that name with the model in it: make it one"
    if "config.json" in files and ("onnx" in folders or "model.onnx" in files):
        return (
            f"found {model}/config.json, as a text model of the Hub has it, without {model}/tokenizer.json: copy or "
            "write it (a tokenizer that is Python code is not executed)"
        )
    for folder, names in sorted(folders.items()):
        if (found := _best(names, rows)) is not None:
            target = f"{model}/{_FIRST}/{wanted or found.row.filename}"
            return f"found {model}/{folder}/{found.name}, expected {target}: rename the folder to 1"
    found = _best((*files, *folders), rows)
    if found is not None:
        target = f"{model}/{_FIRST}/{wanted or found.row.filename}"
        return f"found {model}/{found.name}, expected {target}: make the folder {model}/{_FIRST} and move it there"
    others = [*(name for name in files if name != CONFIG_FILE), *folders]
    target = f"{model}/{_FIRST}/{wanted or 'model.onnx'}"
    return (
        f"found {_listed(others)} in {model}, expected {target}: make the folder {model}/{_FIRST} for the model's file"
    )


def _platform_hint(model: str, platform: str, folders: Mapping[str, Collection[str]]) -> str:
    """Return the hint for a platform that does not exist."""
    present = [
        f"{model}/{folder}/{row.filename}"
        for folder, names in folders.items()
        for row in PLATFORMS
        if row.filename in names
    ]
    near = nearest_platform(platform)
    known = f'"{near}"' if near else "one of " + ", ".join(row.name for row in PLATFORMS if row.name)
    remove = f", or remove the line: {present[0]} says it" if present else ""
    return f'found platform: "{platform}", expected {known}: correct it in {model}/{CONFIG_FILE}{remove}'


def _best(names: Collection[str], rows: Sequence[Platform]) -> _ModelFile | None:
    """Return the name most like one of the files of `rows`: equal, equal without regard to case, or with its ending."""
    for alike in (str, str.lower, _ending):
        for row in rows:
            for name in sorted(names):
                if alike(name) == alike(row.filename):
                    return _ModelFile(name, row)
    return None


def _ending(name: str) -> str:
    """Where the name of a file says its format: any module of a model in Python ends as its main one does."""
    ending = Path(name).suffix.lower()
    return name if ending == ".py" else ending


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_MOST_NAMES]
    return ", ".join(shown) + (" …" if len(names) > _MOST_NAMES else "") if shown else "nothing"
