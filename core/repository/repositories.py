"""All model repositories of a server as one: which repository has a model, and which names are duplicates.

Source: docs/spec/repository.md sections 1.3 (duplicate names, namespaces) and 1.4.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.repository import no_models_hint
from trident.core.repository.sources import Source, SourceFile

_log = logging.getLogger("trident.repository")

NOT_UNIQUE = "model appears in two or more repositories"


class ModelKey(NamedTuple):
    """Identifies a model. `namespace` is its repository's location with --model-namespacing, otherwise empty."""

    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """A model in a repository, with its files as listed."""

    key: ModelKey
    source: Source
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of all repositories: models by key, duplicate names, and the failures by repository."""

    models: Mapping[ModelKey, Located]
    duplicates: frozenset[str]
    failures: Mapping[str, RepositoryUnavailable] = field(default_factory=dict)


class Repositories:
    """The repositories of a server, in the order of the command line; any loader thread, several at once."""

    def __init__(self, sources: Iterable[Source], *, namespacing: bool = False) -> None:
        # A repository that is named twice counts once. Otherwise all its models would be duplicates.
        self._sources = list({source.location: source for source in sources}.values())
        self._namespacing = namespacing
        self._last_names: dict[str, Sequence[str]] = {}

    def check(self) -> None:
        """Raise RepositoryUnavailable if a repository cannot be read."""
        for source in self._sources:
            self._last_names[source.location] = source.models()

    def check_exist(self) -> None:
        """Raise RepositoryUnavailable for a repository in which nothing was found because its place does not exist."""
        for source in self._sources:
            if not self._last_names.get(source.location):
                source.check_exists()

    def warn_of_empty(self) -> None:
        """Log a warning for each repository in which nothing was found, with what it holds instead."""
        for source in self._sources:
            if self._last_names.get(source.location):
                continue
            try:
                source.check_exists()
            except RepositoryUnavailable as error:
                _log.warning("%s%s", error.message, f": {error.hint}" if error.hint else "")
            else:
                _log.warning("there is no model in %s: %s", source.location, no_models_hint(source.location))

    def scan(self) -> Scan:
        """List each repository once. An unreadable one is among the failures and does not affect the others."""
        models: dict[ModelKey, Located] = {}
        duplicates: set[str] = set()
        failures: dict[str, RepositoryUnavailable] = {}
        for source in self._sources:
            try:
                found = source.scan()
            except RepositoryUnavailable as error:
                failures[source.location] = error
                continue
            self._last_names[source.location] = sorted(found)
            for name, files in sorted(found.items()):
                key = self._key(source, name)
                if key in models:
                    duplicates.add(name)
                models[key] = Located(key, source, tuple(files))
        return Scan(
            {key: m for key, m in models.items() if key.name not in duplicates}, frozenset(duplicates), failures
        )

    def find(self, name: str) -> list[Located]:
        """Every repository's model `name`; several of them can be loaded only with namespacing.

        Raises RepositoryUnavailable if a repository cannot be read, because the model might be in it.
        """
        found = []
        for source in self._sources:
            files = source.files(name)
            if files is not None:
                found.append(Located(self._key(source, name), source, tuple(files)))
        return found

    def names(self) -> dict[ModelKey, str]:
        """Every model directory, each with NOT_UNIQUE or "".

        For an unreadable repository these are the names that it had last.
        """
        names: dict[ModelKey, str] = {}
        for source in self._sources:
            try:
                self._last_names[source.location] = source.models()
            except RepositoryUnavailable as error:
                _log.warning("failed to list repository %s: %s", source.location, error.message)
            for name in self._last_names.get(source.location, ()):
                key = self._key(source, name)
                names[key] = NOT_UNIQUE if key in names else ""
        return names

    def _key(self, source: Source, name: str) -> ModelKey:
        return ModelKey(name, source.location if self._namespacing else "")
