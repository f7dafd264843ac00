"""`trident serve`: runs the server that the settings describe."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trident.adapters.common.options import BadOption
from trident.app.process.environment import announce_metrics_directory, use_one_heap
from trident.app.process.files import PrivateDirectory
from trident.app.settings.server import GRPC, METRICS, ServerSettings
from trident.app.sites.site import Credentials, ServerParts, connection_limits
from trident.app.supervisor.arbiter import EngineChild, ServerConfiguration
from trident.app.supervisor.arbiter import serve as run_server
from trident.app.supervisor.start import FailureNote, Topology, choose_topology
from trident.app.worker.listening_sockets import StopTimes
from trident.core.lifecycle.options import EnginePlace

if TYPE_CHECKING:
    from trident.app.sites.engine_start import EngineStart
    from trident.app.sites.site import Site


_log = logging.getLogger("trident.server")


_FRONT_END_MODULES = (
    "trident.app.worker.worker",
    "trident.app.sites.applications",
    "trident.core.remote.engine_client",
    "trident.core.http.flask_app",
)
_GRPC_MODULES = ("trident.app.worker.http2.connection", "trident.core.grpc.application")


def serve(settings: ServerSettings) -> int:
    """Serve until the server is stopped. Returns the exit status of the process."""
    if settings.response_cache_bytes or settings.model_control_mode == "demand":
        use_one_heap()
    return run_server(server_configuration(settings))


def server_configuration(settings: ServerSettings, parts: ServerParts | None = None) -> ServerConfiguration:
    """The configuration of the server process; the sites and the engine are made after the fork."""
    parts = parts or ServerParts()
    services = settings.services()
    topology = choose_topology(settings)
    _log.info("%s", topology)
    directory = PrivateDirectory.make() if topology.http_workers else None
    note = FailureNote()
    shared_modules: tuple[str, ...] = ()
    if topology.http_workers > 1:
        shared_modules = _FRONT_END_MODULES + (_GRPC_MODULES if GRPC in services else ())
    return ServerConfiguration(
        services=tuple(services.values()),
        last_ports=frozenset(each.port for name, each in services.items() if name == METRICS),
        begin=partial(_begin, settings, directory, parts),
        make_site=partial(_make_site, settings, Credentials(settings), directory, topology.engines, parts),
        limits=connection_limits(settings),
        stop_times=StopTimes(drain_grace_s=settings.shutdown_grace_secs, exit_timeout_s=settings.exit_timeout_secs),
        workers=max(1, topology.http_workers),
        shared_modules=shared_modules,
        engines=_engine_children(settings, directory, topology, note, parts) if directory is not None else (),
        failure_note=note,
    )


def _begin(settings: ServerSettings, directory: PrivateDirectory | None, parts: ServerParts) -> EngineStart | None:
    """Start the engine of a server in one process; a front end has its engine elsewhere."""
    if directory is not None:
        return None
    from trident.app.sites.engine_start import EngineStart

    return EngineStart(settings, parts.makers)


def _make_site(
    settings: ServerSettings,
    credentials: Credentials,
    directory: PrivateDirectory | None,
    engines: int,
    parts: ServerParts,
    begun: EngineStart | None,
) -> Site:
    # The imports are here because a front end does not need the engine's modules, and the main process needs neither.
    if directory is None:
        from trident.app.sites.applications import InProcessSite
        from trident.app.sites.engine_start import EngineStart

        return InProcessSite(settings, credentials, begun or EngineStart(settings, parts.makers), parts.around)
    from trident.app.sites.applications import FrontEndSite

    return FrontEndSite(settings, credentials, directory, engines, parts.around)


def _engine_children(
    settings: ServerSettings, directory: PrivateDirectory, topology: Topology, note: FailureNote, parts: ServerParts
) -> tuple[EngineChild, ...]:
    announce_metrics_directory(str(directory.metrics))
    parent = os.getpid()

    def run(place: EnginePlace) -> int:
        from trident.app.supervisor.engine_process import EngineProcess

        return EngineProcess(settings, directory, parent, topology.http_workers, note, place, parts).run()

    children = []
    for index in range(topology.engines):
        name = "the engine" if topology.engines == 1 else f"engine {index}"
        place = EnginePlace(index, topology.engines)
        children.append(EngineChild(partial(run, place), directory.remove, name))
    return tuple(children)


# --- `trident serve FILE`: a repository for as long as the server runs, around files that are not in one
_CONFIG_FILE = "config.pbtxt"
# Files of folders that are one model, not a repository.
_MARKS = frozenset(
    {"MLmodel", "genai_config.json", "MAR-INF", "saved_model.pb", "model.yaml", "model-settings.json", _CONFIG_FILE}
)
_MARKED = frozenset({".onnx", ".pt", ".pt2", ".mar", ".xml", ".cbm", ".joblib", ".pkl", ".skops", ".ubj", ".bst"})
_HUB = frozenset({"config.json", "tokenizer.json"})
# Weights without a graph: they are refused, with the step to a model that is one.
_WEIGHTS = frozenset({".safetensors", ".bin", ".h5", ".keras", ".gguf", ".pth", ".ckpt", ".tflite", ".msgpack"})
_FROM_HUB = "\na model of the Hugging Face Hub is fetched before: hf download NAME --local-dir FOLDER"


def is_name_of_hub(word: str) -> bool:
    """Return True if a word that names no file or folder looks like OWNER/NAME of the Hugging Face Hub."""
    owner, slash, name = word.partition("/")
    return bool(slash and owner.strip(".") and name) and "/" not in name and not Path(owner).exists()


@contextmanager
def repositories_around(*, links: bool = True) -> Iterator[Callable[[str], str]]:
    """Gives the repository for a word after `serve`: the word, or a folder that lasts as long as the context.

    With `links` the folder has links to the files of the model, else copies.
    It raises BadOption for a file that is not a model, for a version of a model, and for a path that does not exist.
    """
    with ExitStack() as made:

        def around(word: str) -> str:
            if "://" not in word and not os.path.lexists(word):
                raise BadOption(
                    f"there is neither a file nor a folder {word}{_FROM_HUB if is_name_of_hub(word) else ''}"
                )
            path = Path(os.path.abspath(word))
            if path.name.isdecimal() and _is_version_folder(path):
                raise BadOption(
                    f"{word} is version {path.name} of the model {path.parent.name}\n"
                    f"serve the model: trident serve {Path(word).parent}"
                )
            return _made(word, made, links=links) if is_served_directly(Path(word)) else word

        yield around


def is_served_directly(path: Path) -> bool:
    """Return True if `path` is a model, or looks like one, and not a repository. It reads names only.

    Unreadable paths are left to the repository, which reports the reason.
    """
    if os.path.isfile(path):
        return True
    names = {name for name in _names_in(path) if not name.startswith(".")}
    folders = [path / name for name in names if os.path.isdir(path / name)]
    if any(_is_model_folder(each) for each in folders if not each.name.isdecimal()):
        return False
    is_marked = any(Path(name).suffix in _MARKED | _WEIGHTS and os.path.isfile(path / name) for name in names)
    if names & _MARKS or names >= _HUB or is_marked:
        return True
    return any(each.name.isdecimal() and _names_in(each) for each in folders)


def _is_version_folder(path: Path) -> bool:
    """Return True if a folder whose name is a number is a version folder of a Triton repository."""
    names = _names_in(path)
    return any(Path(name).stem == "model" for name in names) or (bool(names) and _CONFIG_FILE in _names_in(path.parent))


def _is_model_folder(path: Path) -> bool:
    names = _names_in(path)
    is_repository = any(name.isdecimal() and os.path.isdir(path / name) for name in names)
    return _CONFIG_FILE in names or names >= _HUB or is_repository


def _names_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _made(word: str, made: ExitStack, *, links: bool) -> str:
    """The repository of one model, made by a process of its own: the main process imports nothing that serves, and has
    no thread, before it forks."""
    folder = Path(tempfile.mkdtemp(prefix="trident-serve-"))
    made.callback(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-m", "trident.app", "import", word, f"--repository={folder}", "--no-run"]
    run = subprocess.run([*command, "--link"] if links else command, capture_output=True, text=True, errors="replace")
    if run.returncode:
        raise BadOption((run.stderr or run.stdout).strip())
    for line in run.stdout.splitlines():
        print(f"{word} is served as the model {line}. `trident import {word}` keeps it.", flush=True)
    return str(folder)
