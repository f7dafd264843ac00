"""The folders of a repository that can be models, by their names; the others are logged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from core.repository.layout import is_passed_over

_log = logging.getLogger("trident.repository")


class UsableNames:
    """Selects from the listings of one repository; any thread.

    `problem` says why a name cannot be a folder's, or None. Each refused name is logged once, until it disappears.
    """

    def __init__(self, location: str, problem: Callable[[str], str | None]) -> None:
        self._location = location
        self._problem = problem
        self._lock = threading.Lock()
        self._refused: frozenset[str] = frozenset()

    def of(self, names: Iterable[str]) -> list[str]:
        """The usable ones of `names`, sorted."""
        listed = frozenset(names)
        problems = {name: problem for name in listed if (problem := self._problem(name))}
        passed_over = {name for name in listed - problems.keys() if is_passed_over(name)}
        with self._lock:
            known = self._refused
            self._refused = frozenset(problems) | passed_over
        for name in sorted(problems.keys() - known):
            _log.warning("ignore model %r in %s: %s", name, self._location, problems[name])
        new = sorted(passed_over - known)
        if new:
            shown = ", ".join(map(repr, new))
            _log.info("ignore %s in %s: models do not have such names", shown, self._location)
        return sorted(listed - problems.keys() - passed_over)
