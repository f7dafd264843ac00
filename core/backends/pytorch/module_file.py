"""Finds and loads TorchScript archives. A pickle is never loaded.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from core.backends.file_content import content_hint, start_of
from core.backends.file_origin import written_by
from core.config.paths import is_plain
from core.config.schema import ModelConfig
from core.errors import ModelLoadFailed, RepositoryUnavailable

DEFAULT_FILE = "model.pt"

_ARCHIVE = b"PK\x03\x04"
# The constants of the code: every TorchScript archive has them, and nothing that `torch.save` writes does.
_CONSTANTS = "constants.pkl"
_SCRIPT_IT = "save the model with torch.jit.script(model).save(PATH) or torch.jit.trace(model, example).save(PATH)"


def module_path(version: Path, config: ModelConfig) -> Path:
    """The file in the directory of a version. Raises RepositoryUnavailable with Triton's text."""
    name = config.default_model_filename or DEFAULT_FILE
    path = version / name
    if not is_plain(name) or not path.is_file():
        raise RepositoryUnavailable(
            f"unable to find '{path}' for model '{config.name}'",
            hint="put the TorchScript archive there, or name its file in default_model_filename",
            model=config.name,
        )
    return path


def check_archive(path: Path, model: str) -> None:
    """Raise ModelLoadFailed unless the file is a TorchScript archive. Reads its table of contents, runs nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        raise _failed("the file is not a TorchScript archive", model, _no_archive_hint(path)) from None
    if any(Path(name).name == _CONSTANTS for name in names):
        return
    if any(Path(name).name == "data.pkl" for name in names):
        raise _failed(
            "the file is a pickle that torch.save has written, which could run any code when it is loaded",
            model,
            _SCRIPT_IT,
        )
    hint = 'rename it to model.pt2 and set platform: "torch_aoti"' if _is_package(names) else _SCRIPT_IT
    raise _failed("the file is not a TorchScript archive", model, hint)


def load_module(path: Path, device: str, model: str) -> Any:
    """The module in the archive at `path`, on `device` (`cpu`, `cuda:0`). Raises ModelLoadFailed."""
    check_archive(path, model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(str(path), map_location=device)
    except RuntimeError as exc:
        raise _failed(_message(str(exc)), model, _load_hint(str(exc))) from exc


def _failed(text: str, model: str, hint: str | None) -> ModelLoadFailed:
    return ModelLoadFailed(f"failed to load model '{model}': {text}", hint=hint, model=model)


def _is_package(names: list[str]) -> bool:
    return any("aotinductor" in name or name.endswith("archive_format") for name in names)


def _no_archive_hint(path: Path) -> str:
    if hint := content_hint(path):
        return hint
    if start_of(path, 1) == b"\x80":
        return f"the file is a pickle, which could run any code when it is loaded: {_SCRIPT_IT}"
    if start_of(path, len(_ARCHIVE)) == _ARCHIVE:
        return "the archive is incomplete, because its table of contents is missing: copy the file again"
    return f"compare the file{written_by(path)} with the original; or {_SCRIPT_IT}"


def _load_hint(text: str) -> str | None:
    if "Unknown builtin op" in text or "Unknown type name" in text:
        return "the model uses operators of a library that is not installed here"
    if "version" in text and "supported" in text:
        return f"the archive was made by a newer PyTorch than the installed {torch.__version__}"
    return None


def _message(text: str) -> str:
    """PyTorch's message without the native stack that may follow."""
    return text.partition("\nException raised from")[0].strip()
