"""The models of a multi-model endpoint: loaded, unloaded and listed, one change at a time for each model.

A model is tracked and served under the name that the platform gives it, an opaque hash, because two archives may hold
models with the same name in their configurations. Only an invocation tells the key of the archive, so the log names it
from the first one on. Source: docs/spec/sagemaker.md sections A5 and B3.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from trident.adapters.sagemaker.layout import ModelFolder, find_model
from trident.adapters.sagemaker.model_states import LoadedModel, ModelStates
from trident.core.engine.protocol import Engine
from trident.core.errors import InvalidRequest, ModelLoadFailed, ServerError
from trident.core.http.application import V2Application
from trident.core.http.body import read_object
from trident.core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply
from trident.core.lifecycle.memory import MemoryLedger, MemoryReading, Need, Reservations
from trident.core.memo import Memo
from trident.core.observability.hardware import MemoryState, host_memory, resident_bytes, trim_heap
from trident.core.observability.log import escaped
from trident.core.repository.cache import FileLock, lock_exclusive, try_lock_exclusive

LONGEST_NAME = 255
"""Bytes, the limit of file systems."""

_FOLDER = "model"
_SHOWN = 200


def check_name(name: str) -> None:
    """Check that a folder can have the name. Raises InvalidRequest."""
    problem = _component_problem(name)
    if problem:
        raise InvalidRequest(f"invalid model_name '{_shown(name)}': {problem}", hint="send the name as it was created")


def check_url(url: str, models_root: str) -> None:
    """Check that `url` names a model folder below `models_root`, without access to the disk. Raises InvalidRequest."""
    problem = _url_problem(url, models_root)
    if problem:
        form = f"{models_root.rstrip('/')}/<name>/{_FOLDER}"
        raise InvalidRequest(f"invalid url '{_shown(url)}': {problem}; it must be {form}", hint=f"send {form}")


def folder_of(url: str, models_root: str) -> Path:
    """The folder that `url` names, with its links resolved. Blocks on the disk.

    Raises InvalidRequest also if the folder does not exist, or if its links lead out of `models_root`: so no name
    reaches /dev, /proc, /sys or another part of the system.
    """
    check_url(url, models_root)
    try:
        root = Path(models_root).resolve(strict=True)
        folder = Path(url).resolve(strict=True)
    except FileNotFoundError:
        raise InvalidRequest(
            f"there is no folder '{_shown(url)}'", hint="the model's archive must be unpacked there before it is loaded"
        ) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise InvalidRequest(f"cannot read '{_shown(url)}': {_reason(error)}") from error
    if not folder.is_relative_to(root):
        raise InvalidRequest(f"url '{_shown(url)}' leads out of {models_root}", hint="remove the symbolic link")
    if not folder.is_dir():
        raise InvalidRequest(f"'{_shown(url)}' is not a folder")
    return folder


def _url_problem(url: str, models_root: str) -> str:
    prefix = models_root.rstrip("/") + "/"
    if not url.startswith(prefix):
        return f"it does not begin with {prefix}"
    parts = url.removeprefix(prefix).removesuffix("/").split("/")
    for part in parts:
        problem = _component_problem(part)
        if problem:
            return problem
    if len(parts) not in (2, 3) or parts[1] != _FOLDER:
        return "it names no model folder"
    return ""


def _component_problem(name: str) -> str:
    """The reason why `name` cannot be one component of a path; "" if it can."""
    if not name.strip():
        return "a name must not be empty"
    if name in (os.curdir, os.pardir) or "/" in name or "\0" in name:
        return "a name must not lead to another folder"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "a name must be valid UTF-8"
    return f"a name has at most {LONGEST_NAME} bytes, not {size}" if size > LONGEST_NAME else ""


def _reason(error: OSError | RuntimeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "its links form a loop"


def _shown(text: str) -> str:
    return escaped(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


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
        self._states = states or ModelStates(engine)
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
            with self._memory.reservation(name, url, folder):
                self._engine.load_directory(name, str(folder.path))
        except BaseException as error:
            self._states.settle(name, None)
            _log.warning(
                "model '%s' was not loaded from %s: %s",
                escaped(name),
                self._origin(name, url),
                _reason_of(error),
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
            _log.warning("model '%s' from %s was not unloaded: %s", escaped(name), origin, _reason_of(error))
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
        return page, None if is_last else base64.urlsafe_b64encode(page[-1].name.encode()).decode().rstrip("=")

    def _origin(self, name: str, url: str) -> str:
        """The url, and the key of the archive if an invocation has named it, for the log."""
        archive = self._archives.get(name)
        return escaped(f"{url} (archive '{archive}')" if archive else url)


def _reason_of(error: BaseException) -> str:
    return error.message.strip() if isinstance(error, ServerError) else repr(error)


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


# --- the views: a load or unload may take minutes, so it runs on its own thread and never blocks the hub

# Bytes. The platform sends only a name and a path.
_LARGEST_BODY = 65536
_FIXED = "The limit of this route is fixed."
_LONGEST_NUMBER = 9


# The models of the endpoint, whose routes exist in both modes. Raises RouteAbsent on an endpoint with one model.
Models = Callable[[], LoadedModels]


def collection(models: Models, application: V2Application, environ: Environ) -> Reply:
    """POST loads a model, GET lists the loaded models."""
    view = _load if environ["REQUEST_METHOD"] == "POST" else _page
    return view(models(), application, environ)


def member(models: Models, application: V2Application, environ: Environ, model: str) -> Reply:
    """GET gives the url that the model was loaded from; DELETE unloads it and answers when its memory is free."""
    loaded = models()
    name = unquote(model)
    if environ["REQUEST_METHOD"] == "DELETE":
        application.bridge.run_long(loaded.unload, name)
        return empty_reply(TEXT)
    return json_reply(_described(application.bridge.run(loaded.get, name)))


def _load(loaded: LoadedModels, application: V2Application, environ: Environ) -> Reply:
    """Answer when the model serves. A failed load is the archive's fault, and so a 400, as in Triton."""
    document = read_object(environ, _LARGEST_BODY, _FIXED)
    for key in ("model_name", "url"):
        if not isinstance(document.get(key), str):
            raise InvalidRequest(
                f"'{key}' must be a string", hint='send {"model_name": "...", "url": "/opt/ml/models/.../model"}'
            )
    try:
        application.bridge.run_long(loaded.load, document["model_name"], document["url"])
    except ModelLoadFailed as error:
        raise InvalidRequest(error.message, hint=error.hint, model=error.model) from error
    return empty_reply(TEXT)


def _page(loaded: LoadedModels, application: V2Application, environ: Environ) -> Reply:
    query = parse_qs(environ.get("QUERY_STRING", ""))
    limit = query.get("limit", [str(PAGE)])[0]
    if not (limit.isascii() and limit.isdigit() and len(limit) <= _LONGEST_NUMBER):
        raise InvalidRequest("'limit' must be a whole number from 1")
    token = query.get("next_page_token", [None])[0]
    page, following = application.bridge.run(loaded.names_after, token, int(limit))
    body: dict[str, object] = {"models": [_described(one) for one in page]}
    if following is not None:
        body["nextPageToken"] = following
    return json_reply(body)


def _described(one: LoadedModel) -> dict[str, str]:
    return {"modelName": one.name, "modelUrl": one.url}


# The memory budget. On a 507 the platform unloads another model and tries again. A container that the kernel kills
# loses all its models, so a load is refused while some memory is still free. The memory of GPUs is in the ledger of
# the engine. Source: docs/spec/sagemaker.md sections A5, B4 (Triton searches the texts of errors, after the allocation
# failed) and C.


HOST = "container"
_MIB = 1 << 20
# The peak memory of a load for each byte of the model's files. ONNX Runtime 1.31 copies one matrix after another: 1.1
# was measured for 16 matrices of 16 MiB, 2.0 for one matrix of 256 MiB, and 1.0 after the load.
HOST_FACTOR = 1.5
HOST_EXTRA = 16 * _MIB


class MemoryBudget(MemoryLedger):
    """Admits loads while there is memory for them in the container."""

    def __init__(
        self,
        host: Callable[[], MemoryState | None] = host_memory,
        *,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim_heap,
        others: Reservations | None = None,
    ) -> None:
        """`resident` is what the processes with the models use, `trim` returns freed memory to the system, and `others`
        is what other front ends load.
        """

        def read(devices: Collection[str]) -> dict[str, MemoryReading]:
            state = host()
            return {} if state is None else {HOST: MemoryReading(state.total, state.free, resident())}

        super().__init__(read, {HOST: ""}, trim=trim, others=others)

    @classmethod
    def of_machine(cls, *, limit: int | None = None) -> MemoryBudget:
        """The budget of this container. `limit`: the most bytes for this process, if less than the container's."""
        return cls(partial(_limited_memory, limit, resident_bytes))

    @classmethod
    def of_engines(cls, resident: Callable[[], int], others: Reservations, *, limit: int | None = None) -> MemoryBudget:
        """The budget of a front end, whose engines' processes use `resident` bytes, in this container.

        The engines return freed memory to the system themselves.
        """
        return cls(partial(_limited_memory, limit, resident), resident=resident, trim=lambda: None, others=others)

    @contextmanager
    def reservation(self, name: str, url: str, model: ModelFolder) -> Iterator[None]:
        """Reserve memory for `model` while the caller loads it inside the context, and measure what the load used.

        Raises OutOfMemory on entry if the memory is too short already. Waits only for other loads whose reservations
        leave too little.
        """
        with self.load(name, url, {HOST: int(model.weight_bytes * HOST_FACTOR) + HOST_EXTRA}):
            yield


def _limited_memory(limit: int | None, resident: Callable[[], int]) -> MemoryState | None:
    state = host_memory()
    if limit is None:
        return state
    own = MemoryState(limit, max(0, limit - resident()))
    return own if state is None or own.free < state.free else state


@dataclass(frozen=True, slots=True)
class _Reservation:
    lock: FileLock
    changes: int


class SharedReservations(Reservations):
    """One file for each load, locked by the front end that makes it: the lock of one that has died is free.

    `changes` counts what this and the other front ends reserve, and free.
    """

    pause_s = 0.1

    def __init__(self, folder: Path) -> None:
        """Make `folder` if it does not exist; all front ends of the server have the same."""
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        # Those of this process: what it changes itself it knows.
        self._own: set[Path] = set()
        self._own_changes = 0

    @contextmanager
    def admission(self) -> Iterator[None]:
        lock = lock_exclusive(self._folder / "admission")
        try:
            yield
        finally:
            lock.release()

    def needs(self) -> list[Need]:
        found = []
        for path in self._folder.glob("*.load"):
            if path in self._own:
                continue
            lock = try_lock_exclusive(path)
            if lock is not None:  # its process has died
                path.unlink(missing_ok=True)
                lock.release()
            else:
                found.append(orjson.loads(path.read_bytes()))
        return found

    def reserve(self, need: Need) -> Any:
        path = self._folder / f"{uuid.uuid4().hex}.load"
        lock = lock_exclusive(path)
        path.write_bytes(orjson.dumps(dict(need)))
        self._own.add(path)
        self._count()
        return _Reservation(lock, self._others_changes())

    def release(self, reservation: Any) -> bool:
        was_undisturbed = bool(self._others_changes() == reservation.changes)
        self._own.discard(reservation.lock.path)
        reservation.lock.path.unlink(missing_ok=True)
        reservation.lock.release()
        self._count()
        return was_undisturbed

    def disturb(self) -> None:
        with self.admission():
            self._count()

    def _count(self) -> None:
        changes = self._changes() + 1
        (self._folder / "changes").write_text(str(changes))
        self._own_changes += 1

    def _changes(self) -> int:
        try:
            return int((self._folder / "changes").read_text())
        except FileNotFoundError:
            return 0

    def _others_changes(self) -> int:
        return self._changes() - self._own_changes
