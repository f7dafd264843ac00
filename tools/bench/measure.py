"""Measurements of a load: levels of concurrency or rate, their percentiles, the knee, and comparisons; and the servers
that it is put on.

Times are milliseconds unless a name says otherwise. An interval has 95 % and comes from bootstrap: of the slices of one
run, or of the pairs of runs that were taken in turns.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from trident.adapters.platforms import BUILT_IN
from trident.app.process.environment import process_environment, replace_process_environment
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import ConfigInvalid, ModelNotReady, RepositoryUnavailable, installation
from trident.core.protos.grpc_service_pb2 import (
    ModelConfigRequest,
    ModelConfigResponse,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
)
from trident.tools.ask import OK, NoAnswer, ask, model_config, model_path, spec_of
from trident.tools.bench.client import LoadClient, Sample
from trident.tools.emulators.container import HOST, free_port, inherited_environment

PERCENTILES = (50, 90, 95, 99)
PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
_SLICES = 20
_RESAMPLES = 2000
_SEED = 3
Numbers = npt.NDArray[np.float64]
Answer = TypeVar("Answer", bound=Message)


@dataclass(slots=True, kw_only=True)
class ServerTimes:
    """By the server's statistics: the means of a request. `batches` counts executions by the size of their batch, and
    `costs` is how long one of each took."""

    requests: int
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    batch: float
    batches: dict[str, int] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> list[float]:
        return [self.queue, self.compute_input, self.compute_infer, self.compute_output]


@dataclass(slots=True, kw_only=True)
class Level:
    """A load at one concurrency, or at one rate in requests/s; the other one is 0. `rate` and its interval are what was
    answered. `slices` are parts of the run: seconds, requests/s, and percentiles 50, 90 and 99."""

    concurrency: int = 0
    asked_rate: float = 0.0
    seconds: float
    requests: int
    responses: int
    errors: int
    error: str
    rate: float
    rate_interval: tuple[float, float]
    mean: float
    percentiles: dict[str, float]
    slices: list[tuple[float, ...]]
    server: ServerTimes | None = None
    client_cpu: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.concurrency}" if self.concurrency else f"{self.asked_rate:g}/s"

    @property
    def load(self) -> str:
        return f"concurrency {self.name}" if self.concurrency else f"{self.asked_rate:g} requests/s"

    @property
    def p99(self) -> float:
        return self.percentiles["99"]

    @property
    def is_behind(self) -> bool:
        """True if less than 95 % of the requests of an open loop were answered while it lasted."""
        return bool(self.asked_rate) and self.rate * self.seconds < 0.95 * (self.requests + self.errors)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Level:
        """The level that `asdict` wrote. Raises TypeError or ValueError for something else."""
        server = document.get("server")
        return cls(**{**document, "server": ServerTimes(**server) if server else None})


def measure(
    client: LoadClient,
    server: Server,
    model: str,
    version: str = "",
    *,
    seconds: float,
    concurrency: int = 0,
    rate: float = 0.0,
    poisson: bool = False,
    warm_up: float = 0.0,
    tick: Callable[[], None] = lambda: None,
) -> Level:
    """One level, after a run of `warm_up` seconds that does not count."""

    def run(seconds: float) -> Sample:
        due = due_times(rate, seconds, poisson=poisson) if rate else None
        return client.run(seconds, concurrency=max(1, concurrency), due=due, tick=tick)

    if warm_up:
        run(warm_up)
    before = server.statistics(model, version)
    sample = run(seconds)
    level = level_of(sample, concurrency=concurrency, rate=rate)
    level.server = server_times(before, server.statistics(model, version))
    return level


def due_times(rate: float, seconds: float, *, poisson: bool) -> list[float]:
    """When the requests of an open loop are sent: evenly, or with the gaps of independent callers."""
    count = max(1, round(rate * seconds))
    if not poisson:
        return [index / rate for index in range(count)]
    gaps = np.random.default_rng(_SEED).exponential(1 / rate, count)
    times: list[float] = np.cumsum(gaps).tolist()
    return [at for at in times if at < seconds]


def level_of(sample: Sample, *, concurrency: int = 0, rate: float = 0.0) -> Level:
    """Requests that ended after the run are in the percentiles, which would lack the slowest otherwise, and not in the
    requests/s."""
    begun, latency = np.asarray(sample.begun), np.asarray(sample.latency) * 1e3
    ended = begun + latency / 1e3
    seconds = max(sample.seconds, 1e-9)
    percentiles = np.percentile(latency, PERCENTILES) if latency.size else np.zeros(len(PERCENTILES))
    slices: list[tuple[float, ...]] = []
    edges = np.linspace(0, seconds, _SLICES + 1)
    order = np.argsort(ended, kind="stable")
    places = np.searchsorted(ended[order], edges)
    for at in range(_SLICES):
        part = latency[order[places[at] : places[at + 1]]]
        shown = np.percentile(part, (50, 90, 99)) if part.size else np.zeros(3)
        slices.append((float(edges[at + 1]), part.size * _SLICES / seconds, *(float(each) for each in shown)))
    low, high = interval([each[1] for each in slices])
    return Level(
        concurrency=concurrency,
        asked_rate=rate,
        seconds=seconds,
        requests=latency.size,
        responses=sample.responses,
        errors=sample.errors,
        error=sample.error,
        rate=float(np.count_nonzero(ended <= seconds)) / seconds,
        rate_interval=(low, high),
        mean=float(latency.mean()) if latency.size else 0.0,
        percentiles={str(name): float(value) for name, value in zip(PERCENTILES, percentiles, strict=True)},
        slices=slices,
        client_cpu=sample.cpu,
    )


def server_times(before: Mapping[str, Any], after: Mapping[str, Any]) -> ServerTimes | None:
    """The difference of two answers of the statistics; None without a request between them."""
    spent = _counted(after) - _counted(before)
    requests = spent["success", "count"]
    if not requests:
        return None
    means = {name: spent[name, "ns"] / requests / 1e6 for name in PARTS}
    sizes = sorted((size for size, part in spent if size.isdecimal() and part == "count"), key=int)
    batches = {size: spent[size, "count"] for size in sizes}
    executions = sum(batches.values())
    return ServerTimes(
        requests=requests,
        **means,
        batch=sum(int(size) * count for size, count in batches.items()) / executions if executions else 0.0,
        batches=batches,
        costs={size: spent[size, "ns"] / count / 1e6 for size, count in batches.items()},
    )


def _counted(answer: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    """`count` and `ns` of each part of a request, and of each size of a batch, by their names."""
    found: Counter[tuple[str, str]] = Counter()
    for model in answer.get("model_stats", []):
        parts = dict(model.get("inference_stats", {}))
        parts |= {str(each["batch_size"]): each.get("compute_infer", {}) for each in model.get("batch_stats", [])}
        for name, each in parts.items():
            for part in ("count", "ns"):
                found[name, part] += int(each.get(part, 0))
    return found


# --- results of levels


def interval(values: Sequence[float], middle: Callable[..., Any] = np.mean) -> tuple[float, float]:
    """Of the mean of `values`, or of another `middle`; of fewer than two it is not known and has no ends."""
    if len(values) < 2:
        return (-math.inf, math.inf)
    given = np.asarray(values)
    picks = np.random.default_rng(_SEED).integers(0, len(given), (_RESAMPLES, len(given)))
    low, high = np.percentile(middle(given[picks], axis=1), (2.5, 97.5))
    return float(low), float(high)


def knee(levels: Sequence[Level]) -> int | None:
    """The place of the level with the most requests/s for its median latency; None without one that was answered.

    Above it, requests gain less in number than they lose in time.
    """
    powers = [level.rate / level.percentiles["50"] if level.percentiles["50"] else 0.0 for level in levels]
    return max(range(len(powers)), key=powers.__getitem__) if any(powers) else None


@dataclass(frozen=True, slots=True)
class Difference:
    """Ratio of a figure of the second side to that of the first, with its interval."""

    what: str
    ratio: float
    low: float
    high: float
    more_is_better: bool

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `no difference shown` if the interval has 1 in it."""
        if not (self.low > 1 or self.high < 1):
            return "no difference shown"
        return "better" if (self.ratio > 1) == self.more_is_better else "worse"

    @property
    def text(self) -> str:
        low, high = (f"{100 * (each - 1):+.1f}" if math.isfinite(each) else "?" for each in (self.low, self.high))
        return f"{100 * (self.ratio - 1):+.1f} % [{low}, {high}]"


def difference(
    what: str, first: Sequence[float], second: Sequence[float], *, paired: bool, more_is_better: bool
) -> Difference:
    """The ratio of geometric means. Pairs are drawn together, so what hits both turns of a pair cancels out."""
    above, below = (np.log(np.maximum(np.asarray(each, float), 1e-12)) for each in (second, first))
    if min(above.size, below.size) < 2:
        ratio = float(np.exp(above.mean() - below.mean())) if min(above.size, below.size) else math.nan
        return Difference(what, ratio, 0.0, math.inf, more_is_better)
    random = np.random.default_rng(_SEED)
    picks = random.integers(0, above.size, (_RESAMPLES, above.size))
    others = picks if paired else random.integers(0, below.size, (_RESAMPLES, below.size))
    drawn = above[picks].mean(axis=1) - below[others].mean(axis=1)
    low, middle, high = np.exp([*np.percentile(drawn, (2.5,)), above.mean() - below.mean(), np.percentile(drawn, 97.5)])
    return Difference(what, float(middle), float(low), float(high), more_is_better)


def differences(first: Sequence[Level], second: Sequence[Level], *, paired: bool) -> list[Difference]:
    """Of requests/s and the percentiles 50 and 99: of turns if `paired`, otherwise of the slices of one run."""
    if paired:
        columns = [
            [(each.rate, each.percentiles["50"], each.percentiles["99"]) for each in side] for side in (first, second)
        ]
    else:
        columns = [[(part[1], part[2], part[4]) for part in side[0].slices if part[1]] for side in (first, second)]
    names = (("requests/s", True), ("p50", False), ("p99", False))
    return [
        difference(what, *([row[at] for row in side] for side in columns), paired=paired, more_is_better=more)
        for at, (what, more) in enumerate(names)
    ]


def pooled(turns: Sequence[Level]) -> Level:
    """Turns of one level as one: medians of their figures, since a turn may have been disturbed; rates as slices."""
    first = turns[0]
    document = asdict(first)
    rates = [each.rate for each in turns]
    at, slices = 0.0, []
    for each in turns:
        at += each.seconds
        slices.append((at, each.rate, each.percentiles["50"], each.percentiles["90"], each.percentiles["99"]))
    document |= {
        "seconds": at,
        "rate": float(np.median(rates)),
        "rate_interval": interval(rates, np.median),
        "mean": float(np.median([each.mean for each in turns])),
        "percentiles": {
            name: float(np.median([each.percentiles[name] for each in turns])) for name in first.percentiles
        },
        "slices": slices,
        "error": next((each.error for each in turns if each.error), ""),
        "client_cpu": max(each.client_cpu for each in turns),
        **{name: sum(getattr(each, name) for each in turns) for name in ("requests", "responses", "errors")},
    }
    return Level.read(document)


# --- as text

_SHOWN = ("50", "90", "99")
HEADINGS = ("load", "requests/s", "p50 ms", "p90", "p99", "queue", "compute", "batch")


def row(level: Level) -> list[str]:
    low, high = level.rate_interval
    spread = f" ±{100 * (high - low) / 2 / level.rate:.0f}%" if level.rate and math.isfinite(high - low) else ""
    times = level.server
    server = ("-", "-", "-")
    if times is not None:
        server = (number(times.queue), number(sum(times.parts[1:])), f"{times.batch:.1f}" if times.batch else "-")
    return [level.name, f"{number(level.rate)}{spread}", *(number(level.percentiles[each]) for each in _SHOWN), *server]


def remarks(levels: Sequence[Level]) -> list[str]:
    found = []
    for level in levels:
        if level.errors:
            found.append(f"{level.name}: {level.errors} errors, such as: {level.error.strip()}")
        if level.is_behind:
            found.append(
                f"{level.name}: the server answers {number(level.rate)}/s, so latencies grow as long as the load lasts"
            )
        if level.client_cpu > 0.9:
            found.append(
                f"{level.name}: the client took {level.client_cpu:.0%} of a core and may limit: try --processes=2"
            )
    return found


def number(value: float) -> str:
    """Three significant digits, thousands separated by commas."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def perf_analyzer_csv(levels: Sequence[Level], batch_size: int = 1) -> str:
    """The report of perf_analyzer's option -f: its columns, in inferences/s and microseconds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    by_rate = bool(levels and levels[0].asked_rate)
    writer.writerow(
        (
            "Request Rate" if by_rate else "Concurrency",
            *("Inferences/Second", "Client Send", "Network+Server Send/Recv", "Server Queue"),
            *("Server Compute Input", "Server Compute Infer", "Server Compute Output", "Client Recv"),
            *(f"p{name} latency" for name in PERCENTILES),
        )
    )
    for level in levels:
        times = level.server
        parts = times.parts if times is not None else [0.0] * len(PARTS)
        micros = [max(0.0, level.mean - sum(parts)), *parts, 0.0, *level.percentiles.values()]
        load = f"{level.asked_rate:g}" if by_rate else level.concurrency
        writer.writerow([load, f"{level.rate * batch_size:g}", 0, *(round(1e3 * each) for each in micros)])
    return out.getvalue()


# --- the servers: one that runs already, asked over HTTP or gRPC, or one that is started for the load
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
            request = ModelConfigRequest(name=model, version=version)
            config: ModelConfig = self._call("ModelConfig", request, ModelConfigResponse).config
            return config
        return model_config(self.url, model, version)

    def spec(self, model: str, version: str) -> ModelSpec:
        """Raises ModelNotReady."""
        return spec_of(self.config(model, version), version, self.url)

    def statistics(self, model: str, version: str) -> dict[str, Any]:
        """The counters of the model's versions; empty if the server has none."""
        if self.is_grpc:
            with contextlib.suppress(ModelNotReady):
                wanted = ModelStatisticsRequest(name=model, version=version)
                found = self._call("ModelStatistics", wanted, ModelStatisticsResponse)
                return MessageToDict(found, preserving_proto_field_name=True)
            return {}
        try:
            answer = ask("GET", f"{self.url}{model_path(model, version)}/stats")
        except NoAnswer:
            return {}
        document = answer.document
        return document if answer.status == OK and isinstance(document, dict) else {}

    def _call(self, method: str, request: Message, response: type[Answer]) -> Answer:
        try:
            import grpc
        except ModuleNotFoundError:
            raise ConfigInvalid(
                f"asking {self.url} over gRPC needs the package grpcio",
                hint=f"--v2-url names a port with HTTP; or {installation('tools')}",
            ) from None
        try:
            with grpc.insecure_channel(self.url) as channel:
                call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
                return response.FromString(call(request.SerializeToString(), timeout=10))
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


# Imported by a server with an ONNX model and by a load client, for a process from which they are forked.
PRELOADED = (
    "numpy.random",
    "trident.tools.bench.client",
    "trident.app.cli",
    "trident.app.serve",
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
        return ask("GET", f"{url}/v2/health/ready").status == OK
    except NoAnswer:
        return False
