"""Reads a model's files and the text of its parameters, before a framework does.

Of a file they read a bounded part, and run nothing of it: where it is, what is wrong with it, and what wrote it.
Source: docs/spec/framework-backends.md section 6.1, docs/spec/onnxruntime-backend.md section 5.2.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from trident.core.config.problem import is_plain, open_file
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, RepositoryUnavailable
from trident.core.repository.layout_hints import missing_file_hint
from trident.core.repository.repository import chmod_hint

_LFS_POINTER = b"version https://git-lfs"


def content_hint(path: Path) -> str | None:
    """The cure for a file that may not be read, is empty or a Git LFS pointer; None for any other, and for no file."""
    if os.path.exists(path) and not os.access(path, os.R_OK, effective_ids=True):
        return chmod_hint(path)
    start = start_of(path, len(_LFS_POINTER))
    if start == b"":
        return "the file is empty: copy it again"
    if start == _LFS_POINTER:
        return "the file is a Git LFS pointer, not the model: run `git lfs pull` where it was cloned, and copy it again"
    return None


def start_of(path: Path, size: int) -> bytes | None:
    """The first `size` bytes of a file, or fewer if it has no more; None if it cannot be read."""
    try:
        with open_file(path) as file:
            return file.read(size)
    except OSError:
        return None


def text_of(path: Path, errors: str = "strict") -> str:
    """The text of a file, with any kind of newlines. Raises OSError, and UnicodeDecodeError as `errors` says."""
    with io.TextIOWrapper(open_file(path), "utf-8", errors) as file:
        return file.read()


def weight_bytes(version: Path, config: ModelConfig, name: str) -> int:
    """The bytes of the model in a version directory, with its weights in other files; 0 if they tell nothing.

    `name` is the file without another one in the configuration. Of several models in the folder only one is loaded, so
    that others of the same kind do not count.
    """
    if config.cc_model_filenames:
        return 0
    own = version / (config.default_model_filename or name)
    files = [file for file in version.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files if file == own or file.suffix != own.suffix)


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
        message or f"unable to find '{path}' for model '{config.name}'", hint=missing_file_hint(version, config, name)
    )


PICKLE = "Python's pickle"
TORCH_EXPORT, TORCH_SAVE, TORCH_SCRIPT = "PyTorch (torch.export)", "PyTorch's torch.save", "PyTorch (TorchScript)"
# First bytes of files, and the programs that wrote them.
_ORIGINS = (
    (re.compile(rb"\x80[\2-\5]"), PICKLE),
    (re.compile(rb"tree\r?\nversion="), "LightGBM"),
    (re.compile(rb'\{(?:\s*"|L\0{7}\x07)learner'), "XGBoost"),  # JSON and UBJSON
    (re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<net "), "OpenVINO"),
    (re.compile(rb"ptrt"), "TensorRT 8.5 or older"),
    # Since TensorRT 8.6 its version is in the bytes 24 to 27: major, minor, patch, build.
    (re.compile(rb"ftrt.{20}([^\0])(.)(.)(.)", re.DOTALL), "TensorRT {}.{}.{} (build {})"),
    (re.compile(rb"ftrt"), "TensorRT"),
)


def origin_of(path: Path) -> str | None:
    """The program that wrote the file, or the folder of a SavedModel, as `XGBoost`; None if it cannot be told.

    It cannot of Treelite's checkpoints: they begin with three small integers, as other files of numbers do.
    """
    if path.is_dir():
        return "TensorFlow" if (path / "saved_model.pb").is_file() else None
    start = start_of(path, 4096) or b""
    if start[:2] == b"PK":
        try:
            with zipfile.ZipFile(path) as archive:
                names = {PurePath(name).name for name in archive.namelist()}
        except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile):
            return None
        if "constants.pkl" in names:  # of the code: every archive has them, and nothing that `torch.save` writes does
            return TORCH_SCRIPT
        if "archive_format" in names:
            return TORCH_EXPORT
        return TORCH_SAVE if "data.pkl" in names else None
    for pattern, text in _ORIGINS:
        if match := pattern.match(start):
            return text.format(*[group[0] for group in match.groups()])
    return None


def origins_in(version: Path) -> dict[str, str]:
    """The origins of the files and SavedModels in the directory of a version, by their names, of those that tell."""
    origins = {file.name: origin_of(file) for file in sorted(version.iterdir())}
    return {name: origin for name, origin in origins.items() if origin}


def written_by(path: Path) -> str:
    """`, which XGBoost has written,` to follow the name of the file in a message, or nothing."""
    origin = origin_of(path)
    return f", which {origin} has written," if origin else ""


_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
}


def message_classes(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """Classes of protobuf for the fields of `messages` that are read or changed; all other fields are kept.

    Fields are written as `name number type`, with `*` for repeated ones, and divided by commas.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for name, number, kind in (field.split() for field in fields.split(",")):
            field = message.field.add(name=name, number=int(number), label=_FIELD.LABEL_OPTIONAL)
            if kind.endswith("*"):
                field.label, kind = _FIELD.LABEL_REPEATED, kind[:-1]
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


# --- the values of parameters and of backend settings, which are all text; errors have Triton's texts

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})


def parameters_of(config: ModelConfig) -> dict[str, str]:
    return {name: value.string_value for name, value in config.parameters.items()}


def field_of(parameter: str) -> str:
    """The field of a configuration that a parameter is, as in a Problem."""
    return f"parameters[{parameter}]"


def boolean(text: str, field: str = "") -> bool:
    """True for true, on and 1; False for false, off and 0; in upper or lower case. Otherwise raises ConfigInvalid."""
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    hint = "true, on, 1, false, off or 0"
    raise ConfigInvalid(f"failed to convert '{text}' to boolean", hint=hint, field=field)


def integer(text: str, field: str = "") -> int:
    try:
        return int(text)
    except ValueError:
        message = f"failed to convert '{text}' to integral number"
        raise ConfigInvalid(message, hint="a whole number", field=field) from None


def at_least_one(text: str, name: str, model: str) -> int:
    value = integer(text, field_of(name))
    if value < 1:
        raise ConfigInvalid(
            f"parameter '{name}' of model '{model}' is {value}", hint="a number of at least 1", field=field_of(name)
        )
    return value
