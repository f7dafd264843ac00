"""Hints for likely mistakes in the layout of a model: found, expected, and the next step."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from trident.core.config.platforms import PLATFORMS, BackendPlatform
from trident.core.config.schema import ModelConfig
from trident.core.repository.repository import CONFIG_FILE, RESERVED_FOLDERS, ModelDirectory, version_number

_MOST_NAMES = 5
_FILES = tuple(dict.fromkeys(row.filename for row in PLATFORMS))
_PICKLE = "export the model to ONNX, or load it in a model.py of the backend python"
_TREES = 'name the backend and the type of its file: backend: "fil" and parameters { key: "model_type" … }'
# The cure for files of other programs, by the end of their names.
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
    ".gguf": "files of llama.cpp are not supported: make a folder of the original weights, with the model builder of "
    "ONNX Runtime GenAI",
    ".mlmodel": "models of Core ML are not supported: export the original to ONNX",
    ".mlpackage": "models of Core ML are not supported: export the original to ONNX",
    ".pmml": "PMML is not supported: export the original to ONNX",
    ".json": _TREES,
    ".ubj": _TREES,
    ".txt": _TREES,
}


class _ModelFile(NamedTuple):
    """A file that may be the model, judged by its name."""

    name: str
    row: BackendPlatform


def layout_hint(directory: ModelDirectory, config: ModelConfig) -> str:
    """Return what a model's folder has, and what it should have; "" if that is unknown.

    For a model without a version, or of an unknown backend; `config` is as complete as possible.
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
    if config.platform and not config.backend:  # it does not exist
        return ""
    if versions:
        first = min(folders)
        if first not in versions and not config.backend:
            return (
                f"found the folder {model}/{first}, expected a version there, since the first folder tells the "
                f"backend: move it away, or write the backend into {model}/{CONFIG_FILE}"
            )
        version = min(versions)
        return _version_hint(f"{model}/{version}", folders[version], config, config.default_model_filename)
    if "config.json" in files and ("onnx" in folders or "model.onnx" in files):
        return (
            f"found {model}/config.json, as a text model of the Hub has it, without {model}/tokenizer.json: copy or "
            "write it (a tokenizer that is Python code is not executed)"
        )
    places = {name: f"{model}/{folder}/{name}" for folder, names in folders.items() for name in names}
    places |= {name: f"{model}/{name}" for name in (*files, *folders)}
    found = _best(places, _rows(config))
    shown = places[found.name] if found else f"{_listed({*files, *folders} - {CONFIG_FILE})} in {model}"
    wanted = config.default_model_filename or (found.row.filename if found else "model.onnx")
    return f"found {shown}, expected {model}/1/{wanted}: make the folder {model}/1 for the files of version 1"


def unread_configuration(directory: ModelDirectory) -> tuple[str, str] | None:
    """Return the path of a file that may be meant as the configuration of a model without one, as `m/config.yaml`, and
    the cure; None without one. Raises OSError.
    """
    names = set(os.listdir(directory.path))
    if CONFIG_FILE in names:
        return None
    model, folders = directory.name, directory.folders()
    is_of_hub = not names.isdisjoint(("tokenizer.json", "genai_config.json"))
    for name in sorted(names.difference(folders)):
        if _is_like_configuration(name):
            return f"{model}/{name}", f"rename it to {CONFIG_FILE}"
        if name.lower() in _IN_OTHER_FORMATS and not is_of_hub:
            return f"{model}/{name}", f"write it as {model}/{CONFIG_FILE}, in the text format of protobuf"
    for folder in folders:
        if version_number(folder) is not None:
            for name in sorted(directory.names_in(folder)):  # its config.json may be the model's own
                if _is_like_configuration(name):
                    return f"{model}/{folder}/{name}", f"move it to {model}/{CONFIG_FILE}"
    return None


_IN_OTHER_FORMATS = frozenset(f"config.{ending}" for ending in ("json", "yaml", "yml", "toml"))


def _is_like_configuration(name: str) -> bool:
    stem, ending = os.path.splitext(name.lower())
    return ending in (".pbtxt", ".pbtext", ".prototxt") or (stem == "config" and ending in ("", ".pb", ".pbtx", ".txt"))


def missing_file_hint(version: Path, config: ModelConfig, wanted: str) -> str | None:
    try:
        names = os.listdir(version)
    except OSError:
        return None
    return _version_hint(f"{config.name}/{version.name}", names, config, wanted)


def no_models_hint(location: str) -> str:
    step = "make a folder for each model, with a folder for each version"
    try:
        names = [name for name in os.listdir(location) if not name.startswith(".")]
    except OSError:
        return f"expected MODEL/1/model.onnx: {step}"
    if CONFIG_FILE in names or _best(names, PLATFORMS) is not None:
        step += ", or serve it with --single-model=NAME"
    return f"found {_listed(names)}, expected MODEL/1/model.onnx: {step}"


def _rows(config: ModelConfig) -> list[BackendPlatform]:
    return [row for row in PLATFORMS if config.backend in ("", row.backend)]


def _version_hint(place: str, names: Collection[str], config: ModelConfig, wanted: str) -> str:
    rows = _rows(config)
    expected = f"expected {place}/{wanted}" if wanted else f"expected one of {', '.join(_FILES)}"
    found = _best(names, rows) or (_best(names, PLATFORMS) if config.backend else None)
    if found is None and config.backend and len(names) == 1:  # whatever it is called, it must be meant
        found = _ModelFile(min(names), (rows or PLATFORMS)[0])
    if found is None:
        export = next((EXPORTS[_ending(name)] for name in sorted(names) if _ending(name) in EXPORTS), "")
        return f"found {_listed(names)} in {place}, {expected}" + (
            f": {export}" if export and not config.backend else ""
        )
    if found.row not in rows and rows:
        return f'found {place}/{found.name}, {expected}: write backend: "{found.row.backend}" for it, or replace it'
    backend = "" if config.backend else f'backend: "{found.row.backend}" and '
    return (
        f"found {place}/{found.name}, expected {place}/{wanted or found.row.filename}: rename it, or write "
        f'{backend}default_model_filename: "{found.name}" into {CONFIG_FILE}'
    )


def _best(names: Iterable[str], rows: Sequence[BackendPlatform]) -> _ModelFile | None:
    """Return the name most like one of the files of `rows`: equal, equal without regard to case, or with its ending."""
    for alike in (str, str.lower, _ending):
        for row in rows:
            for name in sorted(names):
                if alike(name) == alike(row.filename):
                    return _ModelFile(name, row)
    return None


def _ending(name: str) -> str:
    """Return the part of a file's name that says its format; for Python the whole name, as any module ends in .py."""
    ending = Path(name).suffix.lower()
    return name if ending == ".py" else ending


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_MOST_NAMES]
    return ", ".join(shown) + (" …" if len(names) > _MOST_NAMES else "") if shown else "nothing"
