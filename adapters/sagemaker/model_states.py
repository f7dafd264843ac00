r"""The states of a multi-model endpoint's models, and the invocations that an unload waits for.

    (unknown) -> LOADING -> LOADED -> UNLOADING -> (unknown)
                    \-> (unknown) (the load failed)

They are in memory, or in files that several front ends share:

    <digest>          the state and the url of one model; replaced as a whole
    changing/<digest> locked by the front end that loads or unloads the model
    invoked/<digest>  locked, shared, by each front end that has invocations of the model; exclusively by an unload

The kernel frees the locks of a front end that dies. The model that it was loading or unloading then is unloaded, and so
unknown: the platform asks again. The engines know which models are there: one that an engine has lost, and could not
load again, is unknown as well, so that the platform loads it once more.
Source: docs/spec/sagemaker.md sections A5 and B3.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import orjson

from trident.core.engine.protocol import Engine
from trident.core.errors import AlreadyLoaded, ModelNotFound, ServerError
from trident.core.lifecycle.state import Phase
from trident.core.memo import Memo
from trident.core.observability.log import escaped
from trident.core.remote.calls import EngineGone
from trident.core.repository.cache import FileLock, try_lock_exclusive, try_lock_shared

_log = logging.getLogger("trident.sagemaker")

_PAUSE_S = 0.02
_FILES_AT_MOST = 1_000
# The platform waits 60 for a load.
_ENGINE_SECONDS = 30.0
_COMING = frozenset((Phase.ENGINE_DOWN, Phase.STARTING, Phase.LOADING))


class State(Enum):
    LOADING = "being loaded"
    LOADED = "loaded"
    UNLOADING = "being unloaded"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`name` and `url` as the platform sent them. The engine serves the model under the same name."""

    name: str
    url: str


class ModelStates:
    """Changes to one model wait for each other; changes to different models do not.

    The changes block, and are made on native threads; `begin_invocation` and `end_invocation` do not block.
    """

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        """`folder` is for front ends: only this server uses it, and it survives all of them. None: in memory."""
        self._engine = engine
        # An engine in another process may lose models.
        self._is_shared = folder is not None
        self._store = _InMemory() if folder is None else _Files(folder)

    # --- changes

    def begin_load(self, name: str, url: str) -> None:
        """(unknown) -> LOADING. Raises AlreadyLoaded.

        Waits for the end of an unload: after the answer "already loaded" the platform would send requests.
        """
        # The container is live, and gets requests to load, before its engines have started.
        until = time.monotonic() + _ENGINE_SECONDS
        while self._is_shared and self._engine.phase().name in _COMING and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        while not self._store.begin_change(name):
            record = self._store.read(name)
            if record is not None and record.state is State.LOADING:
                raise _already_loaded(name, State.LOADING)
            time.sleep(_PAUSE_S)
        with self._ended_by_an_error(name):
            record = self._store.read(name)
            if record is not None and record.state is State.LOADED and self._is_there(name):
                raise _already_loaded(name, State.LOADED)
            if record is not None:
                self._engine.unload_model(name, True, wait=True)
            self._store.write(_Record(LoadedModel(name, url), State.LOADING))

    def begin_unload(self, name: str) -> LoadedModel | None:
        """LOADED -> UNLOADING, or None if another thread or front end has unloaded it meanwhile. Waits for the end of a
        load. Raises ModelNotFound."""
        was_unloading = False
        while not self._store.begin_change(name):
            record = self._store.read(name)
            was_unloading = was_unloading or (record is not None and record.state is State.UNLOADING)
            time.sleep(_PAUSE_S)
        with self._ended_by_an_error(name):
            record = self._store.read(name)
            if record is not None:
                self._store.write(_Record(record.model, State.UNLOADING))
                return record.model
            if not was_unloading:
                raise _not_loaded(name, None)
        self._store.end_change(name)
        return None

    def settle(self, name: str, model: LoadedModel | None) -> None:
        """End the change that this caller began: `model` is loaded, or with None the name is unknown."""
        if model is None:
            self._store.remove(name)
        else:
            self._store.write(_Record(model, State.LOADED))
        self._store.end_change(name)

    @contextmanager
    def _ended_by_an_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._store.end_change(name)
            raise

    # --- what there is

    def get(self, name: str) -> LoadedModel:
        """The model if it serves. Raises ModelNotFound for one that is unknown, being loaded or being unloaded."""
        model = self._loaded(name)
        if not self._is_there(name):
            self._forget_lost(name)
            raise _not_loaded(name, None)
        return model

    def loaded(self) -> Mapping[str, LoadedModel]:
        """The models that serve, by name."""
        records = self._store.records()
        ready = set[str]()
        if self._is_shared and records:
            with suppress(ServerError):  # without an engine none of them is lost yet
                ready = {entry.name for entry in self._engine.repository_index(True)}
        found = {}
        for record in records:
            name = record.model.name
            if record.state is State.LOADED and (name in ready or self._is_there(name)):
                found[name] = record.model
            elif self._is_shared:
                self._forget_lost(name)
        return found

    def _loaded(self, name: str) -> LoadedModel:
        record = self._store.read(name)
        if record is None or record.state is not State.LOADED:
            raise _not_loaded(name, record.state if record is not None else None)
        return record.model

    def _is_there(self, name: str) -> bool:
        """True if an engine has the model, or will have it as soon as it runs."""
        if not self._is_shared:
            return True
        try:
            self._engine.is_model_ready(name)
        except EngineGone:
            return True
        except ServerError:
            return False
        return True

    def _forget_lost(self, name: str) -> None:
        """Unload a model that a front end was changing when it died, or that its engine could not load again: it is
        unknown then. Does not wait for that.
        """
        if not self._store.begin_change(name):
            return
        record = self._store.read(name)
        if record is None or (record.state is State.LOADED and self._is_there(name)):
            self._store.end_change(name)
            return
        threading.Thread(target=self._unload_lost, args=(name,), name="trident-lost-model", daemon=True).start()

    def _unload_lost(self, name: str) -> None:
        _log.warning("model '%s' was lost with the process that had it: it is unloaded", escaped(name))
        try:
            self._engine.unload_model(name, True, wait=True)
        except ServerError as error:
            _log.error("model '%s' was not unloaded: %s", escaped(name), error.message)
            self._store.end_change(name)
        else:
            self.settle(name, None)

    # --- invocations

    def begin_invocation(self, name: str) -> LoadedModel:
        """As `get`; until `end_invocation`, `await_invocations` waits for the caller."""
        self._loaded(name)  # before a file is made for a name that anybody may send
        if not self._store.begin_invocation(name):
            raise _not_loaded(name, State.UNLOADING)
        try:
            return self._loaded(name)  # since an unload has begun, it would not wait for this invocation
        except BaseException:
            self.end_invocation(name)
            raise

    def end_invocation(self, name: str) -> None:
        self._store.end_invocation(name)

    def await_invocations(self, name: str) -> None:
        """Wait for the invocations that began before the model's unload did; no other can begin."""
        while self._store.is_invoked(name):
            time.sleep(_PAUSE_S)


def _already_loaded(name: str, state: State) -> AlreadyLoaded:
    return AlreadyLoaded(f"model '{escaped(name)}' is {state.value} already", model=name)


def _not_loaded(name: str, state: State | None) -> ModelNotFound:
    hint = "load it with POST /models" if state is None else f"it is {state.value}"
    return ModelNotFound(f"model '{escaped(name)}' is not loaded", hint=hint, model=name)


@dataclass(frozen=True, slots=True)
class _Record:
    model: LoadedModel
    state: State


class _InMemory:
    """The records of the models, who changes them and who invokes them, in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}
        self._changing: set[str] = set()
        self._invocations: Counter[str] = Counter()

    def read(self, name: str) -> _Record | None:
        return self._records.get(name)

    def records(self) -> list[_Record]:
        return list(self._records.values())

    def write(self, record: _Record) -> None:
        self._records[record.model.name] = record

    def remove(self, name: str) -> None:
        self._records.pop(name, None)

    def begin_change(self, name: str) -> bool:
        """True if the caller may change the model; until `end_change` no other caller may."""
        with self._lock:
            may = name not in self._changing
            self._changing.add(name)
            return may

    def end_change(self, name: str) -> None:
        self._changing.remove(name)

    def begin_invocation(self, name: str) -> bool:
        """Count an invocation; False if an unload has waited for all of them, and this one comes too late."""
        with self._lock:
            self._invocations[name] += 1
            return True

    def end_invocation(self, name: str) -> None:
        with self._lock:
            self._invocations[name] -= 1
            if not self._invocations[name]:
                del self._invocations[name]

    def is_invoked(self, name: str) -> bool:
        return name in self._invocations


class _Paths(NamedTuple):
    """The files of one model."""

    record: Path
    changing: Path
    invoked: Path


class _Files:
    """As `_InMemory`, in the files of all front ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for each in (folder, folder / "changing", folder / "invoked"):
            each.mkdir(mode=0o700, exist_ok=True)
        # By name: the changes of this front end, and its locks for invocations with their numbers.
        self._changes: dict[str, FileLock] = {}
        self._lock = threading.Lock()
        self._invocations: Counter[str] = Counter()
        self._invoked: dict[str, FileLock] = {}
        # Each invocation needs them.
        self._paths: Memo[str, _Paths] = Memo(_FILES_AT_MOST)
        # The records that were read, by the files that they were in: a record that is replaced is in another one.
        self._read: dict[str, tuple[tuple[int, int, int], _Record]] = {}

    def read(self, name: str) -> _Record | None:
        return self._read_file(self._of(name).record)

    def records(self) -> list[_Record]:
        return [record for path in self._folder.iterdir() if path.is_file() and (record := self._read_file(path))]

    def write(self, record: _Record) -> None:
        path = self._of(record.model.name).record
        partial = path.parent / "changing" / f"{path.name}.next"  # written under the lock alone
        plain = {"name": record.model.name, "url": record.model.url, "state": record.state.name}
        try:
            partial.write_bytes(orjson.dumps(plain))
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    def remove(self, name: str) -> None:
        self._of(name).record.unlink(missing_ok=True)

    def begin_change(self, name: str) -> bool:
        lock = try_lock_exclusive(self._of(name).changing)
        if lock is None:
            return False
        self._changes[name] = lock
        return True

    def end_change(self, name: str) -> None:
        self._changes.pop(name).release()

    def begin_invocation(self, name: str) -> bool:
        with self._lock:
            if name not in self._invoked:
                lock = try_lock_shared(self._of(name).invoked)
                if lock is None:
                    return False
                self._invoked[name] = lock
            self._invocations[name] += 1
            return True

    def end_invocation(self, name: str) -> None:
        with self._lock:
            self._invocations[name] -= 1
            if not self._invocations[name]:
                del self._invocations[name]
                self._invoked.pop(name).release()

    def is_invoked(self, name: str) -> bool:
        lock = try_lock_exclusive(self._of(name).invoked)
        if lock is not None:
            lock.release()
        return lock is None

    def _of(self, name: str) -> _Paths:
        paths = self._paths.get(name)
        if paths is None:
            digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            folder = self._folder
            paths = _Paths(folder / digest, folder / "changing" / digest, folder / "invoked" / digest)
            self._paths[name] = paths
        return paths

    def _read_file(self, path: Path) -> _Record | None:
        """The content of the file, or None. Costs one look at the file, unless it is new."""
        try:
            status = os.stat(path)
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
            known = self._read.get(path.name)
            if known is not None and known[0] == stamp:
                return known[1]
            plain = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            self._read.pop(path.name, None)
            return None
        record = _Record(LoadedModel(plain["name"], plain["url"]), State[plain["state"]])
        self._read[path.name] = stamp, record
        return record
