"""The model directory as the platform fills it: the models in it, and the one that requests run.

Source: docs/spec/sagemaker.md sections A4 and B2. Unlike Triton, a folder that cannot be a model is ignored,
and a single model needs no repository around it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from trident.adapters.sagemaker.platform import DEFAULT_MODEL
from trident.core.config.platforms import is_ensemble
from trident.core.errors import ConfigInvalid, InvalidRequest
from trident.core.observability.log import escaped
from trident.core.repository.config import read_config
from trident.core.repository.layouts import AnyLayoutSource, FolderShape, can_be_model, folder_shape
from trident.core.repository.repository import ModelDirectory
from trident.core.repository.sources import LocalSource

DEEPEST = 32
"""Levels of folders. A recursive walk over them must end."""

_SHOWN = 8


def find_model(folder: Path) -> Path:
    """Find the folder of the model in `folder`. Blocks on the disk.

    Raises InvalidRequest if there is no model or the choice is ambiguous, and for files that may not be read: links
    that lead out of `folder`, devices, pipes. Raises ConfigInvalid for a malformed configuration.
    """
    files = list_files(folder)
    if folder_shape(files) is not FolderShape.REPOSITORY:
        return folder
    return folder / _only_model(folder, files)


def list_files(folder: Path) -> dict[str, int]:
    """The sizes in bytes of all files under `folder`, by path with `/`. An empty folder's path ends with `/`.

    Links are followed, but only once to each folder and never out of `folder`: the load follows them too, and an
    archive must not reach the system or another archive's model. Raises InvalidRequest.
    """
    root = folder.resolve()
    found: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    waiting = [(str(folder), "")]
    while waiting:
        path, prefix = waiting.pop()
        if prefix.count("/") > DEEPEST:
            raise InvalidRequest(
                f"'{escaped(str(folder))}' has more than {DEEPEST} levels of folders", hint="unnest the archive"
            )
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(path) as entries:
                listed = list(entries)
        except OSError as error:
            raise InvalidRequest(f"cannot read '{escaped(path)}': {error.strerror}") from error
        if not listed and prefix:
            found[prefix] = 0
        for entry in listed:
            _enter(entry, prefix, root, found, waiting)
    return found


def _enter(
    entry: os.DirEntry[str], prefix: str, root: Path, found: dict[str, int], waiting: list[tuple[str, str]]
) -> None:
    """Add a file to `found` or a folder to `waiting`. A dangling link is skipped."""
    path = f"{prefix}{entry.name}"
    if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root):
        raise InvalidRequest(
            f"the link '{escaped(path)}' leads out of the archive", hint="put the file itself into the archive"
        )
    try:
        status = entry.stat()
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode):
        waiting.append((entry.path, f"{path}/"))
    elif stat.S_ISREG(status.st_mode):
        found[path] = status.st_size
    else:  # opening a pipe would block forever
        raise InvalidRequest(f"'{escaped(path)}' is neither a file nor a folder", hint="remove it from the archive")


def _only_model(folder: Path, files: Mapping[str, int]) -> str:
    tops = sorted({path.partition("/")[0] for path in files})
    names = []
    for name in tops:
        prefix = f"{name}/"
        own = {path.removeprefix(prefix): size for path, size in files.items() if path.startswith(prefix)}
        # Hidden folders of tools, and names that are not UTF-8, are no models.
        has_model_name = name.isprintable() and not name.startswith(".")
        if has_model_name and (can_be_model(own) or folder_shape(own) is not FolderShape.REPOSITORY):
            names.append(name)
    if not names:
        raise InvalidRequest(
            f"there is no model in '{escaped(str(folder))}': neither it nor a folder in it has config.pbtxt, a "
            f"version directory or model.onnx; it holds {_listed(tops)}",
            hint="put config.pbtxt and the version directories at the top of the archive, or into one folder",
        )
    if len(names) == 1:
        return names[0]
    configs = {name: read_config(ModelDirectory(name, folder / name)) for name in names}
    ensembles = [name for name, each in configs.items() if is_ensemble(each) or each.HasField("ensemble_scheduling")]
    if len(ensembles) != 1:
        what = f"{len(ensembles)} of them ensembles" if ensembles else "none of them an ensemble"
        raise InvalidRequest(
            f"there are {len(names)} models in '{escaped(str(folder))}', {what}: {_listed(names)}",
            hint="an archive holds one model, or one ensemble with the models that it is made of",
        )
    return ensembles[0]


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{escaped(name)}'" for name in names[:_SHOWN]) + more


_ACCEPTED = (
    "it may hold <model>/config.pbtxt and <model>/<version>/model.onnx, or one model without a folder of its own: "
    "config.pbtxt, <version>/model.onnx or model.onnx"
)


def find_default_model(root: str, default_model: str = "") -> str:
    """The model in the folder `root` that /invocations runs; `default_model` is the configured name, or "".

    Raises ConfigInvalid if there is no model or the default one is ambiguous, and RepositoryUnavailable if the folder
    cannot be read. Blocks on the disk.
    """
    path = Path(root).absolute()
    if not path.is_dir():
        raise ConfigInvalid(
            f"there is no model: {root} is not a directory", hint="the platform unpacks the model's archive there"
        )
    models = sorted(AnyLayoutSource(LocalSource(path.parent), path.name, LocalSource(path)).scan())
    if not models:
        names = sorted(entry.name for entry in path.iterdir())
        found = f"it holds {', '.join(map(repr, names[:10]))}{' …' if names[10:] else ''}" if names else "it is empty"
        raise ConfigInvalid(f"there is no model in {root}: {found}", hint=_ACCEPTED)
    if default_model and default_model not in models:
        raise ConfigInvalid(
            f"{DEFAULT_MODEL} is '{default_model}', which is not a model in {root}",
            hint=f"the models are: {', '.join(models)}",
        )
    if not default_model and len(models) > 1:
        raise ConfigInvalid(
            f"{root} holds several models: {', '.join(models)}",
            hint=f"name the model that /invocations runs: --env {DEFAULT_MODEL}={models[0]}",
        )
    return default_model or models[0]
