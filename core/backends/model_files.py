"""Says what wrote a model file, as far as the file itself tells. Imports no framework and runs nothing of the file.

It reads a bounded part of the file; XML is searched for one attribute and not parsed, so that no entity is expanded.
Source: docs/spec/framework-backends.md section 6.1.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePath

from trident.core.config.problem import is_plain
from trident.core.config.schema import ModelConfig
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.layout_mistakes import missing_file_hint

_LFS_POINTER = b"version https://git-lfs"


def content_hint(path: Path) -> str | None:
    """The cure for a file that is empty or a Git LFS pointer; None for any other, and for what is not a file."""
    start = start_of(path, len(_LFS_POINTER))
    if start == b"":
        return "the file is empty: copy it again"
    if start == _LFS_POINTER:
        return "the file is a Git LFS pointer, not the model: run `git lfs pull` where it was cloned, and copy it again"
    return None


def start_of(path: Path, size: int) -> bytes | None:
    """The first `size` bytes of a file, or fewer if it has no more; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return None


def end_of(path: Path, size: int) -> bytes | None:
    """The last `size` bytes of a file, or fewer if it has no more; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read(size)
    except OSError:
        return None


def path_of_model(
    version: Path,
    config: ModelConfig,
    name: str,
    *,
    is_there: Callable[[Path], bool] = Path.is_file,
    message: str = "",
) -> Path:
    """The file `name`, or the folder, in the directory `version`.

    Raises RepositoryUnavailable, with Triton's text or `message`, if it is not there or leads out of the directory.
    """
    path = version / name
    if is_plain(name) and is_there(path):
        return path
    raise RepositoryUnavailable(
        message or f"unable to find '{path}' for model '{config.name}'",
        hint=missing_file_hint(version, config, name),
        model=config.name,
    )


_READ = 64 << 10
# The description of an exported program: text, of which no model needs more.
_DESCRIPTION_AT_MOST = 16 << 20

_VERSION_TEXT = rb"(\d{1,5}(?:\.\d{1,5}){1,2})"
_OPENVINO = re.compile(rb'(?:"OpenVINO Runtime"|Runtime_version) value="' + _VERSION_TEXT)
_XGBOOST_JSON = re.compile(rb'"version"\s*:\s*\[\s*(\d{1,5})\s*,\s*(\d{1,5})\s*,\s*(\d{1,5})\s*\]\s*\}\s*$')
# UBJSON: the key, an array of three integers of one byte, the end of the object.
_XGBOOST_UBJ = re.compile(rb"version\[#L\0{7}\x03i(.)i(.)i(.)\}$", re.DOTALL)
_LIGHTGBM = re.compile(rb"tree\r?\nversion=(v\d{1,5})")
_TORCH = re.compile(rb'"torch_version":\s*"' + _VERSION_TEXT)
# The list of operators that stands before the version has about 1 KB for each.
_READ_OF_SAVED_MODEL = 1 << 20
# Field 5 of MetaInfoDef with its length, and the tag of the field that follows it.
_TENSORFLOW = re.compile(rb"\x2a([\x05-\x20])(\d{1,3}\.\d{1,3}\.\d{1,3}[0-9A-Za-z.+-]{0,16})\x32")
# A plan: the magic, then its parts, the version in the bytes 24 to 27 (major, minor, patch, build), and the kind of its
# runtime. Before TensorRT 8.6 another magic, and a number that says no version.
_PLAN, _OLD_PLAN = b"ftrt", b"ptrt"
_PLAN_HEADER = 32


def origin_of(path: Path) -> str | None:
    """What wrote the file, or the folder of a SavedModel, as `XGBoost 3.2.0`; None if that cannot be told.

    It cannot of Treelite's checkpoints: they begin with three small integers, as other files of numbers do.
    """
    if path.is_dir():
        return _origin_of_saved_model(path)
    start = start_of(path, _READ)
    if start is None:
        return None
    if start[:2] == b"PK":
        return _origin_of_archive(path)
    if start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5":
        return "Python's pickle"
    if start[:4] in (_PLAN, _OLD_PLAN):
        return _origin_of_plan(start)
    if match := _LIGHTGBM.match(start):
        return f"LightGBM (model format {match[1].decode()})"
    end = end_of(path, _READ) or b""
    if start.lstrip()[:1] == b"<" and b"<net " in start:
        match = _OPENVINO.search(end)
        return f"OpenVINO {match[1].decode()}" if match else "OpenVINO"
    if match := _XGBOOST_JSON.search(end):
        return f"XGBoost {b'.'.join(match.groups()).decode()}"
    match = _XGBOOST_UBJ.search(end)
    return "XGBoost " + ".".join(str(part[0]) for part in match.groups()) if match else None


def origins_in(version: Path) -> dict[str, str]:
    """What wrote the files and SavedModels in the directory of a version, by their names, of those that tell."""
    origins = {file.name: origin_of(file) for file in sorted(version.iterdir())}
    return {name: origin for name, origin in origins.items() if origin}


def written_by(path: Path) -> str:
    """`, which XGBoost 3.2.0 has written,` to follow the name of the file in a message, or nothing."""
    origin = origin_of(path)
    return f", which {origin} has written," if origin else ""


def _origin_of_saved_model(folder: Path) -> str | None:
    start = start_of(folder / "saved_model.pb", _READ_OF_SAVED_MODEL)
    if start is None:
        return None
    versions = [match[2] for match in _TENSORFLOW.finditer(start) if match[1][0] == len(match[2])]
    return f"TensorFlow {versions[0].decode()}" if versions else "TensorFlow"


def _origin_of_plan(start: bytes) -> str:
    if start[:4] == _OLD_PLAN:
        return "TensorRT 8.5 or older"
    if len(start) < _PLAN_HEADER or not start[24]:
        return "TensorRT"
    major, minor, patch, build = start[24:28]
    return f"TensorRT {major}.{minor}.{patch} (build {build})"


def _origin_of_archive(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {PurePath(entry.filename).name: entry for entry in archive.infolist()}
            if "archive_format" in entries:
                described = entries.get("model.json")
                text = b""
                if described is not None and described.file_size <= _DESCRIPTION_AT_MOST:
                    text = archive.read(described)
                match = _TORCH.search(text)
                return f"PyTorch {match[1].decode()} (torch.export)" if match else "PyTorch (torch.export)"
    except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile):
        return None
    if "constants.pkl" in entries:
        return "PyTorch (TorchScript)"
    return "PyTorch's torch.save" if "data.pkl" in entries else None
