"""`trident.Server`: the engine in the caller's process, without a socket."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

from trident.adapters.common.options import BadOption
from trident.app.library.functions import FUNCTION, FunctionModel, make_function_backend, write_repository
from trident.app.library.model import Model
from trident.app.process.environment import process_environment, write_no_bytecode
from trident.app.settings.groups import PLAIN
from trident.app.settings.reading import nearest, read_settings
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.sites.engine_start import engine_options, start_failure
from trident.core.backends.registry import installed_backends
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.errors import ConfigInvalid, ModelLoadFailed, ServerStopping
from trident.core.frontend.admin import model_statistics_json
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import repository_index_json

if TYPE_CHECKING:
    from trident.app.library.ports import OpenPorts

_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class Server:
    """The models of repositories, in this process: no other process, no socket. Use it in a `with`, or `close` it.

    `repositories` are folders or addresses of object stores; `functions` are models that were made with
    `@trident.model`. `options` are those of `trident serve` with underscores: `model_control_mode="explicit"`,
    `load_model=["digits"]`; variables of the environment do not count. It returns when the models are loaded.
    Any thread may call any method. Raises ConfigInvalid for wrong options, and ModelLoadFailed where `trident serve`
    would end. A process that was forked from this one cannot use it: its calls raise ServerStopping.
    """

    def __init__(
        self, *repositories: str | os.PathLike[str], functions: Sequence[FunctionModel] = (), **options: object
    ) -> None:
        self._process = os.getpid()
        self._ports: list[OpenPorts] = []
        self._bridge = ThreadBridge()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        places = [os.fspath(each) for each in repositories]
        makers = installed_backends()
        if functions:
            self._folder = tempfile.TemporaryDirectory(prefix="trident-functions-")
            write_repository(Path(self._folder.name), functions)
            makers[FUNCTION] = make_function_backend(functions)
            places.append(self._folder.name)
            if options.get("model_control_mode") in ("explicit", "demand") and options.get("load_model") != "*":
                asked: Any = options.get("load_model", ())
                options["load_model"] = [
                    *([asked] if isinstance(asked, str) else asked),
                    *(each.name for each in functions),
                ]
        self._settings = _settings(places, options)
        if self._settings.model_signature:
            write_no_bytecode()
        self._running: InferenceEngine | None = make_engine(engine_options(self._settings), makers=makers)
        try:
            self._running.start()
            while not self._running.wait_loaded(timeout_s=1):
                pass
            failure = start_failure(self._settings, self._running.phase(), ())
            if failure:
                raise ModelLoadFailed(
                    failure.partition(" - ")[2], hint="exit_on_error=False serves the models that can be loaded"
                )
        except BaseException:
            self.close(timeout_s=0)
            raise

    def model(self, name: str, version: int = -1) -> Model:
        """The model `name`, in its version -1 for the latest that is ready. It is looked up by each call of it."""
        return Model(self._engine, self._bridge, name, version, {})

    def load(
        self,
        name: str,
        config: Mapping[str, Any] | str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load or reload a model. Blocks until it serves what its repository, `config` and `files` hold.

        `config` is a whole configuration as JSON or a mapping, `files` are the files of the model by their paths in its
        folder, such as `1/model.onnx`. Needs `model_control_mode="explicit"`. Raises a ServerError; what served then
        continues to serve.
        """
        parameters: dict[str, str | bytes] = {f"file:{path}": content for path, content in (files or {}).items()}
        if config is not None:
            parameters["config"] = config if isinstance(config, str) else json.dumps(config)
        self._engine().load_model(name, parameters)

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model, and with `dependents` the models of an ensemble. Requests in flight are answered. Blocks
        until the memory is free. Needs `model_control_mode="explicit"`."""
        self._engine().unload_model(name, dependents, wait=True)

    def is_ready(self) -> bool:
        """Return whether all models serve that the options ask for."""
        return self._engine().is_ready()

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Every known version with its state and, of one that failed, the reason. Blocks on storage."""
        return repository_index_json(self._engine().repository_index(ready_only))

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions, as `GET /v2` answers them."""
        return asdict(self._engine().server_metadata())

    def statistics(self) -> list[dict[str, Any]]:
        """Counts and times in ns of every ready version, as `GET /v2/models/stats` answers them."""
        found: list[dict[str, Any]] = model_statistics_json(self._engine().model_statistics())["model_stats"]
        return found

    def serve(
        self,
        *,
        http_port: int | None = 0,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        address: str = "127.0.0.1",
    ) -> OpenPorts:
        """Answer the v2 protocol at ports of this process, on a thread of its own, until `close` of the result.

        0 is a free port, None opens none. With the option `console=True` the HTTP port has the console. Returns when
        the ports answer. This imports gevent and gunicorn, and patches nothing. Raises BindFailed, a ServerError.
        """
        engine = self._engine()
        from trident.app.library.ports import OpenPorts

        opened = OpenPorts(
            self._settings, engine, address=address, http=http_port, grpc=grpc_port, metrics=metrics_port
        )
        self._ports.append(opened)
        return opened

    def wsgi(self) -> WSGIApplication:
        """The v2 routes, and the console if the server has it, as a WSGI application for a server of the caller's:
        one whose requests have threads, such as gunicorn's gthread. It imports gevent, and patches nothing."""
        engine = self._engine()
        from trident.app.sites.applications import Applications, make_thread_bridge

        settings = replace(self._settings, allow_http=True, allow_metrics=False)
        return Applications(settings, engine, make_thread_bridge).by_port()[settings.http_port]

    @property
    def url(self) -> str:
        """The URL of the first HTTP port that `serve` opened, such as `http://127.0.0.1:8000`; "" without one."""
        return next((each.url for each in self._ports if each.url), "")

    def close(self, timeout_s: float = 30.0) -> bool:
        """End it: refuse new requests, answer the accepted ones within `timeout_s` seconds, free all memory.

        Returns whether all were answered. Does nothing the second time, and in a forked process.
        """
        engine, self._running = self._running, None
        if engine is None or os.getpid() != self._process:
            return True
        for each in self._ports:
            each.close()
        engine.begin_exit()
        drained = engine.finish(timeout_s)
        if self._folder is not None:
            self._folder.cleanup()
        return drained

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _engine(self) -> InferenceEngine:
        engine = self._running
        if engine is None:
            raise ServerStopping("the server was closed")
        if os.getpid() != self._process:
            raise ServerStopping(
                "this process was forked from the one that made the server, and has not its threads and sessions",
                hint="make the server after the fork, or start processes with the method 'spawn'",
            )
        return engine


def _settings(repositories: Sequence[str], options: Mapping[str, object]) -> ServerSettings:
    """The settings of `trident serve` with these options. Raises ConfigInvalid."""
    gpus = process_environment().get(_VISIBLE_GPUS)
    environ = {} if gpus is None else {_VISIBLE_GPUS: gpus}
    arguments = [f"--model-repository={place}" for place in repositories]
    try:
        arguments += _arguments(options)
        return read_settings([f"--platform={PLAIN}", *arguments], environ, needs_repository=bool(repositories))
    except BadOption as error:
        raise ConfigInvalid(str(error)) from None


def _arguments(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        option = SERVER_OPTIONS.get(name)
        if option is None or not option.flag:
            raise BadOption(f"unknown option '{name}'{nearest(name, SERVER_OPTIONS)}")
        values = value if option.repeatable and isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for each in values:
            text = str(each).lower() if isinstance(each, bool) else str(each)
            if option.takes_value:
                yield f"--{option.flag}={text}"
            elif each:
                yield f"--{option.flag}"
