"""Follows changes in the model repositories, in poll mode.

Source: docs/spec/repository.md sections 1.3 and 1.6.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from trident.core.lifecycle.model import Model
from trident.core.lifecycle.models import Models
from trident.core.lifecycle.state import LoadCause
from trident.core.repository.sources import Located, ModelKey, Repositories, Scan

_log = logging.getLogger("trident.lifecycle")


class Poller:
    """Follows changes in the repositories. `poll` is called on one thread.

    `load` loads a model on a thread of `submit`, and does not raise. `unload` begins to unload one, for a cause.
    """

    def __init__(
        self,
        repositories: Repositories,
        models: Models,
        submit: Callable[[Callable[[], None]], None],
        load: Callable[[Located], object],
        unload: Callable[[Model, str], object],
    ) -> None:
        self._repositories = repositories
        self._models = models
        self._submit = submit
        self._load = load
        self._unload = unload
        self._lock = threading.Lock()
        # The models that wait for a thread, as the last poll found them.
        self._queued: dict[ModelKey, Located] = {}
        self._polls = 0

    def poll(self) -> None:
        """Look at all repositories and begin the loads and unloads.

        A load in progress goes on with files that are newer than its own, and ends if the model is gone.
        """
        self._polls += 1
        scan = self._repositories.scan()
        for location, error in scan.failures.items():
            _log.warning("failed to poll model repository %s: %s; its models stay as they are", location, error.message)
        for name in sorted(scan.duplicates):
            model = self._models.add(ModelKey(name))
            if not model.is_busy:  # its name is ambiguous
                if model.serving:
                    self._unload(model, LoadCause.POLL.value)
                model.note_duplicate()
        with self._lock:
            self._queued = {key: located for key, located in self._queued.items() if key in scan.models}
        for located in scan.models.values():
            model = self._models.add(located.key)
            # After a failure the old files may return: then nothing is loaded, but the reason is cleared.
            changed = model.has_failed or not model.is_made_of(located.files)
            if changed and not model.is_busy and model.is_worth_a_try(located.files, self._polls):
                self._queue(model, located)
        self._change_loads(scan)
        for model in self._models.all():
            is_missing = model.key not in scan.models and model.key.name not in scan.duplicates
            if is_missing and not model.is_busy and model.location not in scan.failures:
                if model.serving:
                    _log.info("'%s' is no longer in its repository", model.key.name)
                    self._unload(model, LoadCause.POLL.value)
                model.forget()

    def poll_loads(self) -> None:
        """Look at all repositories once, while the start still loads models: for those that serve, and for loads."""
        scan = self._repositories.scan()
        for located in scan.models.values():
            model = self._models.add(located.key)
            if model.serving and not model.is_busy and not model.is_made_of(located.files):
                self._queue(model, located)
        self._change_loads(scan)

    def _change_loads(self, scan: Scan) -> None:
        """Let loads in progress begin anew with newer files, and end those of models that are gone."""
        for model in self._models.all():
            if not model.attempted or model.location in scan.failures:
                continue
            located = scan.models.get(model.key)
            if located is not None:
                model.load_newer(located)
            elif model.key.name not in scan.duplicates:
                model.end_load("it is no longer in its repository")

    def _queue(self, model: Model, located: Located) -> None:
        """Each model waits for a thread only once, however often it changes: polls continue while loads take long."""
        model.is_awaited = True
        with self._lock:
            is_new = located.key not in self._queued
            self._queued[located.key] = located
        if is_new:
            self._submit(partial(self._load_queued, located.key))

    def _load_queued(self, key: ModelKey) -> None:
        with self._lock:
            located = self._queued.pop(key, None)
        if located is not None:
            self._load(located)
