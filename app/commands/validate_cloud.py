"""The models of a repository in cloud storage, one after the other on the local disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trident.app.terminal.downloads import drawn
from trident.core.errors import ServerError

if TYPE_CHECKING:
    from trident.core.repository.repository import ModelDirectory
    from trident.core.repository.sources import Fetched, Source, SourceFile, SourceOpener


class CloudRepository:
    """The models at `location`, fetched through the cache of `opener`, with a progress bar on a terminal. One thread.

    Its methods raise ServerError as a Source does. `models` also does so for a prefix that does not exist.
    """

    def __init__(self, opener: SourceOpener, location: str, config_name: str) -> None:
        self._progress = opener.progress
        self._source: Source = opener.open(location)
        self._config_name = config_name

    def models(self) -> Sequence[str]:
        found = self._source.models()
        if not found:
            self._source.check_exists()
        return found

    @contextmanager
    def directory(self, model: str) -> Iterator[ModelDirectory]:
        """The model with the versions that its policy selects; it stays on the disk while the context lasts."""
        files = self._source.files(model) or ()
        with ExitStack() as held:
            shared = self._fetch(held, model, files, None)
            around = Path(tempfile.mkdtemp(prefix="trident-validate-"))
            held.callback(shutil.rmtree, around, ignore_errors=True)
            # Copied, not linked: a file that a configuration names must lie within its model directory, links followed.
            shutil.copytree(shared.directory.path, around, dirs_exist_ok=True)
            for version in self._selected(shared.directory):
                fetched = self._fetch(held, model, files, version)
                target = fetched.directory.path / str(version)
                shutil.rmtree(around / str(version), ignore_errors=True)
                os.symlink(target, around / str(version), target_is_directory=True)
            yield replace(shared.directory, path=around)

    def _fetch(self, held: ExitStack, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        with drawn(self._progress):
            fetched = self._source.fetch(model, files, version)
            held.callback(fetched.release)
        return fetched

    def _selected(self, directory: ModelDirectory) -> Sequence[int]:
        """The versions to fetch; none if the configuration is wrong, which the check of the model reports."""
        from trident.core.config.autocomplete import normalize
        from trident.core.repository.config import read_config
        from trident.core.repository.repository import select_versions, version_directories

        try:
            config = read_config(directory, config_name=self._config_name)
            normalize(config, ())
            return select_versions(config, version_directories(directory), directory.name)
        except ServerError:
            return ()
