"""The states of a multi-model endpoint's models where several front ends serve it: in files that all of them share.

    <digest>          the state and the url of one model; replaced as a whole
    changing/<digest> locked by the front end that loads or unloads the model
    invoked/<digest>  locked, shared, by each front end that has invocations of the model; exclusively by an unload

The kernel frees the locks of a front end that dies. The model that it was loading or unloading then is unloaded, and so
unknown: the platform asks again. The engines know which models are there: one that an engine has lost, and could not
load again, is unknown as well, so that the platform loads it once more.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import orjson

from trident.adapters.sagemaker.model_states import LoadedModel, State, already_loaded, not_loaded
from trident.core.engine.protocol import Engine
from trident.core.errors import ServerError
from trident.core.lifecycle.state import Phase
from trident.core.memo import Memo
from trident.core.observability.log import escaped
from trident.core.remote.calls import EngineGone
from trident.core.repository.disk import FileLock, try_lock_exclusive, try_lock_shared

_log = logging.getLogger("trident.sagemaker")

_PAUSE_S = 0.02
_FILES_AT_MOST = 1_000
# The platform waits 60 for a load.
_ENGINE_SECONDS = 30.0
_COMING = frozenset((Phase.ENGINE_DOWN, Phase.STARTING, Phase.LOADING))


@dataclass(frozen=True, slots=True)
class _Record:
    model: LoadedModel
    state: State


class _Files(NamedTuple):
    """Those of one model."""

    record: Path
    changing: Path
    invoked: Path


class SharedModelStates:
    """Made in each front end, on the same `folder`, which only this server uses. It survives all front ends."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        """Make `folder` if it does not exist."""
        self._folder = folder
        self._engine = engine
        for each in (folder, folder / "changing", folder / "invoked"):
            each.mkdir(mode=0o700, exist_ok=True)
        # By name: the changes of this front end, and its locks for invocations with their numbers.
        self._changes: dict[str, FileLock] = {}
        self._counting = threading.Lock()
        self._invocations: Counter[str] = Counter()
        self._invoked: dict[str, FileLock] = {}
        # Each invocation needs them.
        self._files: Memo[str, _Files] = Memo(_FILES_AT_MOST)
        # The records that were read, by the files that they were in: a record that is replaced is in another one.
        self._read: dict[str, tuple[tuple[int, int, int], _Record]] = {}

    # --- changes

    def begin_load(self, name: str, url: str) -> None:
        self._await_engine()
        while (lock := try_lock_exclusive(self._of(name).changing)) is None:
            record = self._record(name)
            if record is not None and record.state is State.LOADING:
                raise already_loaded(name, State.LOADING)
            time.sleep(_PAUSE_S)
        try:
            record = self._record(name)
            if record is not None and record.state is State.LOADED and self._is_there(name):
                raise already_loaded(name, State.LOADED)
            if record is not None:
                self._engine.unload_model(name, True, wait=True)
            self._write(_Record(LoadedModel(name, url), State.LOADING))
        except BaseException:
            lock.release()
            raise
        self._changes[name] = lock

    def begin_unload(self, name: str) -> LoadedModel | None:
        was_unloading = False
        while (lock := try_lock_exclusive(self._of(name).changing)) is None:
            record = self._record(name)
            was_unloading = was_unloading or (record is not None and record.state is State.UNLOADING)
            time.sleep(_PAUSE_S)
        try:
            record = self._record(name)
            if record is None and not was_unloading:
                raise not_loaded(name, None)
            if record is not None:
                self._write(_Record(record.model, State.UNLOADING))
        except BaseException:
            lock.release()
            raise
        if record is None:
            lock.release()
            return None
        self._changes[name] = lock
        return record.model

    def settle(self, name: str, model: LoadedModel | None) -> None:
        if model is None:
            self._of(name).record.unlink(missing_ok=True)
        else:
            self._write(_Record(model, State.LOADED))
        self._changes.pop(name).release()

    def _await_engine(self) -> None:
        """The container is live, and gets requests to load, before its engines have started."""
        until = time.monotonic() + _ENGINE_SECONDS
        while self._engine.phase().name in _COMING and time.monotonic() < until:
            time.sleep(_PAUSE_S)

    # --- what there is

    def get(self, name: str) -> LoadedModel:
        model = self._loaded_record(name)
        if not self._is_there(name):
            self._forget_lost(name)
            raise not_loaded(name, None)
        return model

    def loaded(self) -> Mapping[str, LoadedModel]:
        records = [record for path in self._folder.iterdir() if path.is_file() and (record := self._read_file(path))]
        ready = set[str]()
        with suppress(ServerError):  # without an engine none of them is lost yet
            ready = {entry.name for entry in self._engine.repository_index(True)} if records else ready
        found = {}
        for record in records:
            name = record.model.name
            if record.state is State.LOADED and (name in ready or self._is_there(name)):
                found[name] = record.model
            else:
                self._forget_lost(name)
        return found

    def _is_there(self, name: str) -> bool:
        """Whether an engine has the model, or will have it again as soon as it is there itself."""
        try:
            self._engine.is_model_ready(name)
        except EngineGone:
            return True
        except ServerError:
            return False
        return True

    def _loaded_record(self, name: str) -> LoadedModel:
        record = self._record(name)
        if record is None or record.state is not State.LOADED:
            raise not_loaded(name, record.state if record is not None else None)
        return record.model

    def _forget_lost(self, name: str) -> None:
        """Unload a model that a front end was changing when it died, or that its engine could not load again: it is
        unknown then. Does not wait for that.
        """
        lock = try_lock_exclusive(self._of(name).changing)
        if lock is None:
            return
        record = self._record(name)
        if record is None or (record.state is State.LOADED and self._is_there(name)):
            lock.release()
            return
        self._changes[name] = lock
        threading.Thread(target=self._unload, args=(name,), name="trident-lost-model", daemon=True).start()

    def _unload(self, name: str) -> None:
        _log.warning("model '%s' was lost with the process that had it: it is unloaded", escaped(name))
        try:
            self._engine.unload_model(name, True, wait=True)
        except ServerError as error:
            _log.error("model '%s' was not unloaded: %s", escaped(name), error.message)
            self._changes.pop(name).release()
        else:
            self.settle(name, None)

    # --- invocations

    def begin_invocation(self, name: str) -> LoadedModel:
        self._loaded_record(name)  # before a file is made for a name that anybody may send
        with self._counting:
            if name not in self._invoked:
                lock = try_lock_shared(self._of(name).invoked)
                if lock is None:
                    raise not_loaded(name, State.UNLOADING)
                self._invoked[name] = lock
            self._invocations[name] += 1
        try:
            return self._loaded_record(name)  # since an unload has begun, it would not wait for this invocation
        except BaseException:
            self.end_invocation(name)
            raise

    def end_invocation(self, name: str) -> None:
        with self._counting:
            self._invocations[name] -= 1
            if not self._invocations[name]:
                del self._invocations[name]
                self._invoked.pop(name).release()

    def await_invocations(self, name: str) -> None:
        while (lock := try_lock_exclusive(self._of(name).invoked)) is None:
            time.sleep(_PAUSE_S)
        lock.release()

    # --- files

    def _of(self, name: str) -> _Files:
        files = self._files.get(name)
        if files is None:
            digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            folder = self._folder
            files = self._files[name] = _Files(
                folder / digest, folder / "changing" / digest, folder / "invoked" / digest
            )
        return files

    def _record(self, name: str) -> _Record | None:
        return self._read_file(self._of(name).record)

    def _read_file(self, path: Path) -> _Record | None:
        """What the file says; None if there is none. Costs one look at the file, unless it is new."""
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

    def _write(self, record: _Record) -> None:
        path = self._of(record.model.name).record
        partial = path.parent / "changing" / f"{path.name}.next"  # under the lock: nobody else writes it
        plain = {"name": record.model.name, "url": record.model.url, "state": record.state.name}
        try:
            partial.write_bytes(orjson.dumps(plain))
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
