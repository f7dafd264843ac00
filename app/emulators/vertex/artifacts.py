"""The model's artifacts, as the platform provides them to the container.

The platform makes its own copy, which does not change. The emulator copies a local folder; for artifacts in a storage
the container gets the address as given.
Source: docs/spec/vertex.md section A1 (AIP_STORAGE_URI).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from app.emulators.common.interrupted import Interrupted
from app.emulators.common.read_only_folder import make_read_only
from core.errors import ConfigInvalid

STORAGE_SCHEME = "gs://"
_PIECE = 1 << 22
_HINT = "name a folder, or a gs:// address with STORAGE_EMULATOR_HOST set where an emulator has it"


def provided(model: str, folder: Path, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Copy a local `model` to `folder`, which does not exist yet, and return the text of AIP_STORAGE_URI.

    Raises ConfigInvalid if there is no such model or the copy fails, and Interrupted soon after `is_stopped` returns
    true.
    """

    def copy(source: str, target: str) -> None:
        with open(source, "rb") as reader, open(target, "xb") as writer:
            while piece := reader.read(_PIECE):
                if is_stopped():
                    raise Interrupted
                writer.write(piece)

    if model.startswith(STORAGE_SCHEME):
        if not model.removeprefix(STORAGE_SCHEME).strip("/"):
            raise ConfigInvalid(f"'{model}' names no bucket", hint=_HINT)
        return model
    source = Path(model)
    if not source.is_dir():
        what = "is a file, and artifacts are a folder" if source.exists() else "is not there"
        raise ConfigInvalid(f"{model} {what}", hint=_HINT)
    try:
        shutil.copytree(source, folder, copy_function=copy)
        make_read_only(folder)
    except (OSError, shutil.Error) as error:
        raise ConfigInvalid(f"{model} cannot be copied: {_first(error)}") from error
    return str(folder)


def _first(error: OSError | shutil.Error) -> str:
    """The reason in one line; the copy of a folder collects all its errors."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list) and error.args[0]:
        return str(error.args[0][0][-1])
    return str(error.strerror or error)
