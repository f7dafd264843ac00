"""The models of a multi-model endpoint, which the platform loads, unloads and lists. They are models on demand outside
the repositories; a load pins one, an unload lets it go.

A model is tracked and served under the name that the platform gives it, an opaque hash, because two archives may hold
models with the same name in their configurations. Only an invocation tells the key of the archive, so the log names it
from the first one on. Source: docs/spec/sagemaker.md sections A5 and B3.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, unquote

from trident.adapters.sagemaker.layout import find_model
from trident.core.engine.protocol import Engine
from trident.core.errors import InvalidRequest, ModelLoadFailed, ModelNotFound, ServerError
from trident.core.http.application import V2Application
from trident.core.http.body import read_object
from trident.core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply
from trident.core.lifecycle.state import Phase
from trident.core.memo import Memo
from trident.core.observability.log import escaped

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
        reason = (error.strerror if isinstance(error, OSError) else None) or "its links form a loop"
        raise InvalidRequest(f"cannot read '{_shown(url)}': {reason}") from error
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


def _shown(text: str) -> str:
    return escaped(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


_log = logging.getLogger("trident.sagemaker")

PAGE = 100
"""The models on a page of the list, unless the request gives a limit."""
_ARCHIVES_AT_MOST = 10_000
_PAUSE_S = 0.02
# The platform waits 60 for a load.
_ENGINE_SECONDS = 30.0
_COMING = frozenset((Phase.ENGINE_DOWN, Phase.STARTING, Phase.LOADING))


class LoadedModels:
    """Loads, unloads and lists models. The engine knows which there are, by the name and the url of their load. Any
    native thread; `note_archive` on the hub, too.
    """

    def __init__(self, engine: Engine, models_root: str) -> None:
        """`models_root` is the folder that the platform unpacks archives into."""
        self._engine = engine
        self._models_root = models_root
        # The keys of archives by the names of models, as invocations gave them.
        self._archives: Memo[str, str] = Memo(_ARCHIVES_AT_MOST)

    def load(self, name: str, url: str) -> None:
        """Load the model in the folder `url` and pin it as `name`. Blocks until it serves.

        Raises InvalidRequest for a bad name, url or folder, AlreadyLoaded, OutOfMemory before or during the load, or
        the engine's ServerError. After an error the model is unknown again.
        """
        check_name(name)
        check_url(url, self._models_root)
        # The container is live, and gets requests to load, before its engines have started.
        until = time.monotonic() + _ENGINE_SECONDS
        while self._engine.phase().name in _COMING and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        try:
            self._engine.load_directory(name, str(find_model(folder_of(url, self._models_root))), url)
        except ServerError as error:
            _log.warning(
                "model '%s' was not loaded from %s: %s", escaped(name), self._origin(name, url), error.message.strip()
            )
            raise
        _log.info("model '%s' was loaded from %s", escaped(name), self._origin(name, url))

    def unload(self, name: str) -> None:
        """Unload the model after its requests in flight are answered. Blocks until its memory is free.

        Raises ModelNotFound, or the engine's ServerError.
        """
        url = self.url(name)
        self._engine.unload_model(name, True, wait=True)
        _log.info("model '%s' from %s was unloaded", escaped(name), self._origin(name, url))

    def url(self, name: str) -> str:
        """The url that the model was loaded from. Raises ModelNotFound."""
        found = self._engine.directories().get(name)
        if found is None:
            raise ModelNotFound(f"model '{escaped(name)}' is not loaded", hint="load it with POST /models", model=name)
        return found

    def note_archive(self, name: str, archive: str) -> None:
        """Note the key of the model's archive for the log; "" if the caller of an invocation did not name it."""
        if archive and self._archives.get(name) != archive:
            self._archives[name] = archive
            _log.info("model '%s' is the one from the archive '%s'", escaped(name), escaped(archive))

    def page(self, token: str | None, limit: int = PAGE) -> tuple[list[tuple[str, str]], str | None]:
        """At most `limit` names with their urls, sorted, and the token of the next page; None at the end.

        A page begins after the name that its token encodes, whatever was loaded or unloaded since. So a model that
        stays loaded is listed exactly once. None and "" stand for the first page. Raises InvalidRequest.
        """
        if limit < 1:
            raise InvalidRequest(f"limit must be at least 1, not {limit}")
        after = _name_of(token) if token else ""
        found = sorted(item for item in self._engine.directories().items() if item[0] > after)
        page = found[:limit]
        is_last = len(found) <= limit
        return page, None if is_last else base64.urlsafe_b64encode(page[-1][0].encode()).decode().rstrip("=")

    def _origin(self, name: str, url: str) -> str:
        """The url, and the key of the archive if an invocation has named it, for the log."""
        archive = self._archives.get(name)
        return escaped(f"{url} (archive '{archive}')" if archive else url)


def _name_of(token: str) -> str:
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
    return json_reply(_described(name, application.bridge.run(loaded.url, name)))


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
    page, following = application.bridge.run(loaded.page, token, int(limit))
    body: dict[str, object] = {"models": [_described(*one) for one in page]}
    if following is not None:
        body["nextPageToken"] = following
    return json_reply(body)


def _described(name: str, url: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}
