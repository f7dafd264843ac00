"""The servers that a load is put on: one that runs already, asked over HTTP or gRPC, or one that is started for it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from google.protobuf.json_format import MessageToDict, Parse, ParseError

from trident.adapters.platforms import BUILT_IN
from trident.app.commands.overview import NoAnswer, ask
from trident.app.emulators.container import HOST, free_port, inherited_environment
from trident.app.process.environment import process_environment, replace_process_environment
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import ModelNotReady, RepositoryUnavailable

_OK = 200
_START_S = 600.0
_STOP_S = 20.0
_LOG_LINES = 20


@dataclass(slots=True)
class Server:
    """`url` has the v2 routes over HTTP, or is HOST:PORT of gRPC if `is_grpc`.

    `targets` are the addresses for a load, by protocol; `pid` is 0 unless the server was started here.
    """

    url: str
    is_grpc: bool = False
    targets: dict[str, str] = field(default_factory=dict)
    pid: int = 0
    ready_s: float = 0.0

    def config(self, model: str, version: str) -> ModelConfig:
        """The configuration as the server has completed it. Raises ModelNotReady."""
        if self.is_grpc:
            from tritonclient.grpc.service_pb2 import ModelConfigRequest

            answer = self._call("ModelConfig", ModelConfigRequest(name=model, version=version))
            config: ModelConfig = ModelConfig.FromString(answer.config.SerializeToString())
            return config
        place = f"{self.url}/v2/models/{quote(model, safe='')}{f'/versions/{version}' if version else ''}/config"
        try:
            found = ask("GET", place)
            if found.status != _OK:
                raise ModelNotReady(f"{place}: {found.refusal}")
            # A later Triton's configuration may have fields that this version does not know.
            return Parse(found.body, ModelConfig(), ignore_unknown_fields=True)
        except (NoAnswer, ParseError) as error:
            raise ModelNotReady(f"{place}: {error}", hint="--v2-url names the port with the v2 routes") from None

    def spec(self, model: str, version: str) -> ModelSpec:
        """Raises ModelNotReady."""
        try:
            return resolve_model_spec(self.config(model, version), int(version or 0), {})
        except (KeyError, ValueError) as error:
            raise ModelNotReady(f"the configuration of '{model}' at {self.url} is not valid: {error}") from None

    def statistics(self, model: str, version: str) -> dict[str, Any]:
        """The counters of the model's versions; empty if the server has none."""
        if self.is_grpc:
            from tritonclient.grpc.service_pb2 import ModelStatisticsRequest

            with contextlib.suppress(ModelNotReady):
                answer = self._call("ModelStatistics", ModelStatisticsRequest(name=model, version=version))
                found: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
                return found
            return {}
        place = f"{self.url}/v2/models/{quote(model, safe='')}{f'/versions/{version}' if version else ''}/stats"
        try:
            answer = ask("GET", place)
        except NoAnswer:
            return {}
        document = answer.document
        return document if answer.status == _OK and isinstance(document, dict) else {}

    def _call(self, method: str, request: Any) -> Any:
        import grpc
        from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

        try:
            with grpc.insecure_channel(self.url) as channel:
                return getattr(GRPCInferenceServiceStub(channel), method)(request, timeout=10)
        except grpc.RpcError as error:
            raise ModelNotReady(f"{method} at {self.url}: {error.details()}") from None

    def memory_mb(self) -> float:
        """Memory of the processes that were started here. What they share with others counts once, and wholly."""
        own, shared = 0, 0
        for pid in _tree(self.pid):
            with contextlib.suppress(OSError):
                rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                kilobytes = {name: int(text.split()[0]) for name, _, text in (row.partition(":") for row in rows)}
                private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
                own, shared = own + private, max(shared, kilobytes["Rss"] - private)
        return (own + shared) / 1024


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


# What a server with an ONNX model and a load client import, for a process from which they are forked.
PRELOADED = (
    "numpy.random",
    "trident.app.bench.client",
    "trident.app.cli",
    "trident.app.commands.serve",
    "trident.app.sites.applications",
    "trident.app.sites.engine_start",
    "trident.app.worker.worker",
    "trident.core.backends.in_process",
    "trident.core.backends.onnxruntime.backend",
    "trident.core.backends.onnxruntime.runs",
)


@contextmanager
def started(
    repository: str,
    model: str,
    options: Sequence[str] = (),
    protocols: Sequence[str] = ("http",),
    *,
    forked: bool = False,
) -> Iterator[Server]:
    """A server of this installation with one model, ready, on free ports of this machine. `options` are those of serve.

    One of many may be `forked` from a process that has imported its modules, which is most of the time of a start.
    Raises RepositoryUnavailable with the end of its log if it does not become ready.
    """
    ports = {name: free_port() for name in ("http", "metrics", *protocols)}
    words = [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--load-model={model}",
        f"--http-address={HOST}",
        f"--http-port={ports['http']}",
        f"--metrics-port={ports['metrics']}",
        "--shutdown-grace-secs=0",
        f"--allow-grpc={'true' if 'grpc' in ports else 'false'}",
    ]
    if "grpc" in ports:
        words += [f"--grpc-address={HOST}", f"--grpc-port={ports['grpc']}"]
    variables: dict[str, str] = {}
    for platform in (each for each in BUILT_IN if each.name in ports):
        given = {platform.switch: "true", platform.port: str(ports[platform.name])}
        if platform.required_model:
            given[platform.required_model] = model
        words += ["--platform=plain", *(f"--{name.replace('_', '-')}={text}" for name, text in given.items())]
        variables |= platform.infer_variables
    targets = {name: f"{'' if name == 'grpc' else 'http://'}{HOST}:{port}" for name, port in ports.items()}
    environment = inherited_environment(process_environment()) | variables
    with tempfile.NamedTemporaryFile() as log:
        context: Any = multiprocessing.get_context("forkserver" if forked else "spawn")
        process = context.Process(target=_serve, args=([*words, *options], log.name, environment))
        process.start()
        try:
            began = time.monotonic()
            while not _is_ready(targets["http"]):
                if not process.is_alive() or time.monotonic() - began > _START_S:
                    lines = Path(log.name).read_text(errors="replace").splitlines()[-_LOG_LINES:]
                    raise RepositoryUnavailable("\n".join(["the server did not become ready; its log:", *lines]))
                time.sleep(0.02)
            yield Server(targets["http"], False, targets, process.pid, time.monotonic() - began)
        finally:
            process.terminate()
            process.join(_STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()


def _serve(words: Sequence[str], log: str, environment: Mapping[str, str]) -> NoReturn:
    """The process of a server, in its own session: an interrupt from the terminal ends the measurement, not this."""
    from trident.app.cli import main

    os.setsid()
    for descriptor, file in enumerate((os.devnull, log, log)):
        os.dup2(os.open(file, os.O_RDWR | os.O_APPEND), descriptor)
    replace_process_environment(environment)
    sys.exit(main(["serve", *words]))


def _is_ready(url: str) -> bool:
    try:
        return ask("GET", f"{url}/v2/health/ready").status == _OK
    except NoAnswer:
        return False
