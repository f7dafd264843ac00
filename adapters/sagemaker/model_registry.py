"""The models of a multi-model endpoint: loaded, unloaded and listed, one change at a time for each model.

A model is tracked and served under the name that the platform gives it, an opaque hash, because two archives may hold
models with the same name in their configurations. Only an invocation tells the key of the archive, so the log names it
from the first one on. Source: docs/spec/sagemaker.md sections A5 and B3.
"""

from __future__ import annotations

import base64
import binascii
import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

from adapters.sagemaker.memory import MemoryBudget
from adapters.sagemaker.model_folder import find_model
from adapters.sagemaker.model_states import LoadedModel, ModelStates, OwnModelStates
from adapters.sagemaker.multi_model_url import check_name, check_url, folder_of
from core.engine.protocol import Engine
from core.errors import InvalidRequest, ServerError
from core.memo import Memo
from core.observability.log_text import escaped

_log = logging.getLogger("trident.sagemaker")

PAGE = 100
"""The models on a page of the list, unless the request gives a limit."""
_ARCHIVES_AT_MOST = 10_000


class LoadedModels:
    """Loads, unloads and lists models. Any native thread; `invocation` on the hub, too.

    Changes to one model wait for each other; changes to different models do not.
    """

    def __init__(
        self, engine: Engine, models_root: str, memory: MemoryBudget, states: ModelStates | None = None
    ) -> None:
        """`models_root` is the folder that the platform unpacks archives into. `states` are by default those of a
        container in one process.
        """
        self._engine = engine
        self._models_root = models_root
        self._memory = memory
        self._states = states or OwnModelStates()
        # The keys of archives by the names of models, as invocations gave them.
        self._archives: Memo[str, str] = Memo(_ARCHIVES_AT_MOST)

    def load(self, name: str, url: str) -> None:
        """Load the model in the folder `url` and track it as `name`. Blocks until it serves.

        Raises InvalidRequest for a bad name, url or folder, AlreadyLoaded, OutOfMemory before or during the load, or
        the engine's ServerError. After an error the model is unknown again.
        """
        check_name(name)
        check_url(url, self._models_root)
        self._states.begin_load(name, url)
        try:
            folder = find_model(folder_of(url, self._models_root))
            with self._memory.room_for(name, url, folder):
                self._engine.load_directory(name, str(folder.path))
        except BaseException as error:
            self._states.settle(name, None)
            _log.warning(
                "model '%s' was not loaded from %s: %s", escaped(name), self._origin(name, url), _reason(error)
            )
            raise
        self._states.settle(name, LoadedModel(name, url))
        _log.info("model '%s' was loaded from %s", escaped(name), self._origin(name, url))

    def unload(self, name: str) -> None:
        """Unload the model after its requests in flight are answered. Blocks until its memory is free.

        Waits for a load of the model that is in progress. If another thread is unloading it, returns when that thread
        is done. Raises ModelNotFound, or the engine's ServerError; then the model stays loaded.
        """
        model = self._states.begin_unload(name)
        if model is None:
            return
        try:
            self._states.await_invocations(name)
            self._engine.unload_model(name, True, wait=True)
        except BaseException as error:
            self._states.settle(name, model)
            origin = self._origin(name, model.url)
            _log.warning("model '%s' from %s was not unloaded: %s", escaped(name), origin, _reason(error))
            raise
        self._memory.give_back()
        self._states.settle(name, None)
        _log.info("model '%s' from %s was unloaded", escaped(name), self._origin(name, model.url))

    def get(self, name: str) -> LoadedModel:
        """The model if it serves. Raises ModelNotFound for one that is unknown, being loaded or being unloaded."""
        return self._states.get(name)

    @contextmanager
    def invocation(self, name: str, archive: str = "") -> Iterator[None]:
        """Keep the model loaded inside the context. Does not block.

        Without it an unload could come between the requests of one invocation. `archive` is the key of the model's
        archive, empty if the caller did not name it; only the log needs it. Raises ModelNotFound.
        """
        model = self._states.begin_invocation(name)
        try:
            if archive and self._archives.get(name) != archive:
                self._archives[name] = archive
                _log.info("model '%s' is the one from %s", escaped(name), self._origin(name, model.url))
            yield
        finally:
            self._states.end_invocation(name)

    def names_after(self, token: str | None, limit: int = PAGE) -> tuple[list[LoadedModel], str | None]:
        """A page of at most `limit` loaded models, sorted by name, and the token of the next page; None at the end.

        A page begins after the name that its token encodes, whatever was loaded or unloaded since. So a model that
        stays loaded is listed exactly once. None and "" stand for the first page. Raises InvalidRequest.
        """
        if limit < 1:
            raise InvalidRequest(f"limit must be at least 1, not {limit}")
        after = _name_of(token) if token else ""
        loaded = self._states.loaded()
        names = sorted(loaded)
        begin = bisect_right(names, after)
        page = [loaded[name] for name in names[begin : begin + limit]]
        is_last = begin + limit >= len(names)
        return page, None if is_last else _token_of(page[-1].name)

    def _origin(self, name: str, url: str) -> str:
        """The url, and the key of the archive if an invocation has named it, for the log."""
        archive = self._archives.get(name)
        return escaped(f"{url} (archive '{archive}')" if archive else url)


def _reason(error: BaseException) -> str:
    return error.message.strip() if isinstance(error, ServerError) else repr(error)


def _token_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _name_of(token: str) -> str:
    """The name that a token encodes. Raises InvalidRequest for a malformed token."""
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        name = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        check_name(name)
    except (UnicodeError, binascii.Error, InvalidRequest):
        raise InvalidRequest(
            "invalid next_page_token", hint="send the nextPageToken of the previous page unchanged, or none"
        ) from None
    return name
