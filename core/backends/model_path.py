"""The path of a model in the directory of its version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from core.config.paths import is_plain
from core.config.schema import ModelConfig
from core.errors import RepositoryUnavailable
from core.repository.layout_mistakes import missing_file_hint


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
