"""Fail if this checkout is slower than the last release at any door; it says so in two minutes.

    make bench-guard                                     beside the newest tag v* before HEAD
    make bench-guard GUARD_ARGS='--against main'         beside another commit
    python -m bench guard --only cache,sequences         some rows only

Without a tag the other commit is HEAD's parent. Both servers run at the same time in this environment, with the same
models and all doors open, and are asked by turns of a fraction of a second. A ratio is this checkout's figure over the
other's: the median of the pairs' ratios, with the 95 % interval of that median in brackets. A row is slower if one of
its intervals is all below 0.95: that of requests/s, or that of requests per second of the server's CPU time, which
other work on the machine moves less. The first two thirds of the time are shared by all rows; the rest goes to those
with an interval that reaches below 0.95, and all their pairs count. A row is new if the other commit does not serve it.

The exit status is 1 if a row is slower, or if this checkout does not serve one.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import numpy as np
import tritonclient.http as triton
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

from bench import ensembles, sequences, wrk
from bench.cases import CASES, SEED, Case
from bench.grpc.cases import infer_message
from bench.grpc.load import GrpcLoad, build_or_exit, write_message
from bench.machine import LoadWatch
from bench.models.served import BATCHING, CONFIG, SHIPPED, identity, write
from bench.python import ADD_SUB, build_add_sub
from bench.results import names_among, table
from bench.servers.server import Server, command_of
from bench.shared_memory import shared_load
from bench.turns import HttpLoad, Load, NothingAnswered, Ratio, Turn, Turns
from bench.vertex import TABULAR, TABULAR_FEATURES, build_tabular
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import session_members
from tests.project import ROOT

LIMIT = 0.95


class Verdict(enum.Enum):
    """The value is the word in the table."""

    OK = "ok"
    UNSURE = "not decided"
    """An interval reaches below the limit, but does not all lie there. More pairs narrow it."""
    SLOWER = "**slower**"
    NEW = "new"
    """The other checkout does not serve it."""

    @classmethod
    def of(cls, *ratios: Ratio) -> Verdict:
        """Each of `ratios` is a speed of this checkout over the other's. SLOWER if a whole 95 % interval says so."""
        if any(ratio.high < LIMIT for ratio in ratios):
            return cls.SLOWER
        return cls.OK if all(ratio.low >= LIMIT for ratio in ratios) else cls.UNSURE


CACHE_BYTES = 1 << 24
PREDICT = "/predict"


class AllDoors(Server):
    """The code of `checkout` in this environment. `platform_model` answers at the ports of both platforms.

    Options that the checkout does not know yet are left out, and a model that it cannot load is no error: what it
    does not serve is seen when it is asked.
    """

    def __init__(self, checkout: Path, repository: Path, platform_model: str, log: Path) -> None:
        self.grpc_port, self.sagemaker_port, self.vertex_port = free_ports(3)
        environment = {
            "PYTHONPATH": str(checkout),  # before the checkout that the environment has installed
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": platform_model,
            "AIP_PREDICT_ROUTE": PREDICT,
            "AIP_HEALTH_ROUTE": "/health",
        }
        options = [
            f"--model-repository={repository}",
            "--exit-on-error=false",
            "--strict-readiness=false",
            "--platform=plain",
            "--http-workers=0",
            f"--http-address={HOST}",
            "--http-port={port}",
            "--metrics-port={spare_port}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.grpc_port}",
            "--allow-sagemaker=true",
            f"--sagemaker-port={self.sagemaker_port}",
            "--allow-vertex-ai=true",
            f"--vertex-ai-port={self.vertex_port}",
            f"--vertex-ai-default-model={platform_model}",
            "--allow-client-shm=true",
            f"--cache-config=local,size={CACHE_BYTES}",
        ]
        _compile(checkout)
        known = _known_options(checkout, environment)
        options = [option for option in options if option.partition("=")[0] in known]
        super().__init__("trident", [*command_of(checkout), "serve", *options], log, environment, folder=checkout)

    def cpu_seconds(self) -> float:
        """As those of `Server`, but to the nanosecond: a turn has only a few of the ticks of /proc."""
        return sum(time.clock_gettime(_cpu_clock(process)) for process in self._processes)

    @cached_property
    def _processes(self) -> list[int]:
        """They are as many from the start to the end."""
        return session_members(self.process.pid)

    def counts(self, model: str) -> tuple[int, int]:
        """Requests answered so far, those from the cache too, which are no inferences; and executions."""
        status, _, body = self.exchange("GET", f"/v2/models/{model}/stats")
        if status != 200:
            raise RuntimeError(f"the statistics of '{model}' are answered with {status}: {body.decode()}")
        entry = json.loads(body)["model_stats"][0]
        return int(entry["inference_stats"]["success"]["count"]), int(entry["execution_count"])


def _cpu_clock(process: int) -> int:
    """The clock of another process's CPU time: what clock_getcpuclockid(3) of the C library gives on Linux."""
    return ~process << 3 | 2


def _compile(checkout: Path) -> None:
    """Write the bytecode, so that neither server has the heap of a process that compiled its modules itself."""
    packages = [str(checkout / name) for name in ("core", "adapters", "app")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], check=True)


def _known_options(checkout: Path, environment: dict[str, str]) -> set[str]:
    """The options in the checkout's own help. RuntimeError if it prints none."""
    for words in ("--help=all", "--help"):  # the second is for checkouts whose help has no groups
        done = subprocess.run(
            [*command_of(checkout), "serve", words],
            cwd=checkout,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode:
            break
    if done.returncode:
        raise RuntimeError(f"`trident serve --help` of {checkout} fails: {done.stderr.strip()}")
    return {word.partition("=")[0] for word in done.stdout.split() if word.startswith("--")}


BUILD = ROOT / "build" / "bench" / "guard"
CACHED = "simple_cached"
_LIMIT_S = 60.0
_ITEMS = 100
_JSON, _BINARY, _ECHO = (next(case for case in CASES if case.key == key) for key in ("a-json", "a-binary", "b"))
_CACHE = "response_cache { enable: true }\n"


class NotServed(Exception):
    """The server does not answer this row's request; the message is its answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """`opened` yields the load on a server; NotServed if the server does not serve it. It may end with the server."""

    key: str
    title: str
    opened: Callable[[AllDoors], AbstractContextManager[Load]]
    connections: int = 16


def build(repository: Path) -> None:
    """Write the models of all rows under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    for name in (_JSON.model, CACHED):
        shutil.copytree(SHIPPED / _JSON.model, repository / name)
    cached = repository / CACHED / "config.pbtxt"
    cached.write_text(cached.read_text().replace(f'"{_JSON.model}"', f'"{CACHED}"').replace(BATCHING, _CACHE))
    write(repository / _ECHO.model, CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching=""), identity(["D"]))
    build_add_sub(repository)
    ensembles.build(repository)
    sequences.build(repository)
    build_tabular(repository)


def _v2(name: str, case: Case) -> Callable[[AllDoors], AbstractContextManager[Load]]:
    """Requests of the v2 protocol over HTTP."""

    @contextmanager
    def opened(server: AllDoors) -> Iterator[Load]:
        yield _http(server, name, case.model, server.url(case.path), *case.body())

    return opened


def _grpc(name: str, *, streams: bool) -> Callable[[AllDoors], AbstractContextManager[Load]]:
    @contextmanager
    def opened(server: AllDoors) -> Iterator[Load]:
        message = infer_message(_BINARY)
        request = messages.ModelInferRequest.FromString(message)
        try:
            with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
                service = services.GRPCInferenceServiceStub(channel)
                if streams:
                    (answer,) = service.ModelStreamInfer(iter([request]), timeout=_LIMIT_S)
                    if answer.error_message:
                        raise NotServed(answer.error_message)
                else:
                    service.ModelInfer(request, timeout=_LIMIT_S)
        except grpc.RpcError as error:
            raise NotServed(str(error.details())) from error
        path = write_message(BUILD / f"{name}.grpc", message)
        yield GrpcLoad(server, _BINARY.model, server.grpc_port, path, streams=streams)

    return opened


@contextmanager
def _shared_memory(server: AllDoors) -> Iterator[Load]:
    with ExitStack() as stack:
        try:
            load = stack.enter_context(shared_load(server, _ECHO, _SHARING, BUILD))
        except RuntimeError as error:
            raise NotServed(str(error)) from error
        yield load


@contextmanager
def _sequence(server: AllDoors) -> Iterator[Load]:
    try:
        load = sequences.sequential_load(server, sequences.PAIRS[0], _SEQUENCES)
    except triton.InferenceServerException as error:
        raise NotServed(str(error)) from error
    yield load


@contextmanager
def _sagemaker_csv(server: AllDoors) -> Iterator[Load]:
    text = "\n".join(",".join(map(str, item)) for item in _items()).encode()
    url = f"http://{HOST}:{server.sagemaker_port}/invocations"
    yield _http(server, "csv", TABULAR, url, text, {"Content-Type": "text/csv"})


@contextmanager
def _vertex_predict(server: AllDoors) -> Iterator[Load]:
    body = json.dumps({"instances": _items()}).encode()
    url = f"http://{HOST}:{server.vertex_port}{PREDICT}"
    yield _http(server, "predict", TABULAR, url, body, {"Content-Type": "application/json"})


def _items() -> list[list[float]]:
    items: list[list[float]] = np.random.default_rng(SEED).random((_ITEMS, TABULAR_FEATURES)).round(4).tolist()
    return items


def _http(server: AllDoors, name: str, model: str, url: str, body: bytes, headers: dict[str, str]) -> HttpLoad:
    """The load of one request, which the server has answered once. NotServed if it refuses it."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_LIMIT_S):
            pass
    except urllib.error.HTTPError as error:
        raise NotServed(f"{error.code}: {error.read(500).decode(errors='replace')}") from error
    except urllib.error.URLError as error:
        raise NotServed(str(error.reason)) from error
    return HttpLoad(server, model, url, wrk.write_script(BUILD / f"{name}.lua", body, headers))


_SEQUENCES = 16
_SHARING = 4
ROWS = (
    Row("json", "HTTP, JSON", _v2("json", _JSON)),
    Row("binary", "HTTP, binary", _v2("binary", _BINARY)),
    Row("unary", "gRPC, unary", _grpc("unary", streams=False)),
    Row("stream", "gRPC, stream", _grpc("stream", streams=True)),
    Row("shm", "shared memory, 600 KB", _shared_memory, _SHARING),
    Row("python", "Python model", _v2("python", replace(_BINARY, model=ADD_SUB))),
    Row("ensemble", "ensemble of two steps", _v2("ensemble", replace(_BINARY, model="ensemble"))),
    Row("sequences", "sequences", _sequence, _SEQUENCES),
    Row("cache", "cache hit", _v2("cached", replace(_BINARY, model=CACHED))),
    Row("sagemaker", f"SageMaker, CSV of {_ITEMS} items", _sagemaker_csv, 4),
    Row("vertex", f"Vertex AI, predict of {_ITEMS} instances", _vertex_predict, 4),
)


TAGS = "v*"


@dataclass(frozen=True, slots=True)
class Commit:
    """`why` says how it was chosen."""

    sha: str
    subject: str
    why: str

    def __str__(self) -> str:
        return f"{self.sha[:12]} ({self.why}): {self.subject}"


def find(checkout: Path, against: str | None = None) -> Commit:
    """The commit named by `against`, else the newest tag `v*` before HEAD, else HEAD's parent.

    A tag at HEAD itself does not count: it would be compared with itself. SystemExit says what to do if there is none.
    """
    if against:
        return _commit(checkout, against, f"--against={against}")
    tag = _git(checkout, "describe", "--tags", "--abbrev=0", f"--match={TAGS}", "HEAD^")
    if tag is not None:
        return _commit(checkout, tag, f"the last release, {tag}")
    return _commit(checkout, "HEAD^", f"the parent of HEAD, because no tag {TAGS} comes before it")


@contextmanager
def checked_out(checkout: Path, commit: Commit) -> Iterator[Path]:
    """The folder of the commit's files, which is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="trident-guard-") as parent:
        folder = Path(parent, "checkout")
        done = _run(checkout, "worktree", "add", "--quiet", "--detach", str(folder), commit.sha)
        if done.returncode:
            raise SystemExit(f"git could not check {commit.sha[:12]} out: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            _run(checkout, "worktree", "remove", "--force", str(folder))


def _commit(checkout: Path, name: str, why: str) -> Commit:
    found = _git(checkout, "log", "-1", "--format=%H %s", "--end-of-options", name)
    if found is None:
        raise SystemExit(
            f"There is no commit {name} to compare with ({why}). Name one with --against, or fetch more history: "
            "git fetch --tags --unshallow"
        )
    sha, _, subject = found.partition(" ")
    return Commit(sha, subject, why)


def _git(checkout: Path, *arguments: str) -> str | None:
    """What the command prints, or None if it fails."""
    done = _run(checkout, *arguments)
    return done.stdout.strip() if done.returncode == 0 else None


def _run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("`git` is not installed. On Debian and Ubuntu: apt install git") from None


THIS, OTHER = "this", "other"
SECONDS = 105.0
"""Of the run up to the end of the last turn: a row may take a few pairs longer, and the servers need time to leave."""
FIRST_PASS = 2 / 3
TURN_S = 0.1
WARM_UP_S = 0.3
# Below, the interval is that of the slowest and the fastest pair.
LEAST_PAIRS = 8


@dataclass(slots=True)
class Measured:
    """One row and its pairs of turns so far; no loads if the other checkout does not serve it."""

    row: Row
    loads: dict[str, Load]
    pairs: list[dict[str, Turn]] = field(default_factory=list)

    @property
    def rate(self) -> Ratio:
        """Requests/s."""
        return Ratio.of(*([pair[name].requests_per_second for pair in self.pairs] for name in (THIS, OTHER)))

    @property
    def economy(self) -> Ratio:
        """Requests per second of the server's CPU time."""
        return Ratio.of(*([1e6 / pair[name].cpu_us for pair in self.pairs] for name in (THIS, OTHER)))

    @property
    def verdict(self) -> Verdict:
        return Verdict.of(self.rate, self.economy) if self.loads else Verdict.NEW

    def cells(self) -> list[str]:
        ratios = [str(self.rate), str(self.economy)] if self.loads else ["", ""]
        return [self.row.title, *ratios, str(len(self.pairs)), self.verdict.value]

    def measure(self, until: float) -> None:
        """Add pairs of turns until that time of the monotonic clock, and a few if it is over.

        A pair in which a server had no core to answer is left out; NothingAnswered if that is no exception.
        """
        least = len(self.pairs) + LEAST_PAIRS
        left_out = 0
        with Turns(self.loads, connections=self.row.connections, seconds=TURN_S, warm_up_s=WARM_UP_S) as turns:
            while len(self.pairs) < least or time.monotonic() < until:
                try:
                    self.pairs.append(turns.round(len(self.pairs)))
                except NothingAnswered:
                    left_out += 1
                    if left_out > LEAST_PAIRS:
                        raise
        if turns.errors:
            raise RuntimeError(f"{self.row.title}: {turns.errors} requests failed; the logs are in {BUILD}")


def share(rows: Sequence[Measured], until: float) -> None:
    """Measure the rows one after another; each has an equal part of the time that is left."""
    for index, row in enumerate(rows):
        left = until - time.monotonic()
        row.measure(time.monotonic() + left / (len(rows) - index))
        print(" | ".join(row.cells()), file=sys.stderr, flush=True)


@contextmanager
def opened(rows: Sequence[Row], servers: dict[str, AllDoors]) -> Iterator[list[Measured]]:
    """The rows with their loads. SystemExit if this checkout does not serve one of them."""
    with ExitStack() as stack:
        found = []
        for row in rows:
            try:
                loads = {THIS: stack.enter_context(row.opened(servers[THIS]))}
            except NotServed as error:
                raise SystemExit(f"{row.title}: this checkout does not serve it: {error}") from error
            try:
                loads[OTHER] = stack.enter_context(row.opened(servers[OTHER]))
            except NotServed as error:
                print(f"{row.title}: new, the other checkout answers: {error}", file=sys.stderr, flush=True)
                loads = {}
            found.append(Measured(row, loads))
        yield found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    keys = [row.key for row in ROWS]
    parser.add_argument("--against", metavar="COMMIT", help="the other commit; default: the last release")
    parser.add_argument("--only", type=names_among(keys), default=keys, help=", ".join(keys))
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of the whole run; default {SECONDS:g}")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    began = time.monotonic()
    options = parse(arguments)
    # A job that is cancelled leaves no server and no worktree.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    wrk.require_or_exit()
    build_or_exit()
    commit = find(ROOT, options.against)
    print(f"this checkout beside {commit}", file=sys.stderr, flush=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    models = BUILD / "models"
    build(models)
    watch = LoadWatch()
    with checked_out(ROOT, commit) as folder, ExitStack() as stack:
        checkouts = {OTHER: folder, THIS: ROOT}
        servers = {
            name: stack.enter_context(AllDoors(checkout, models, TABULAR, BUILD / f"{name}.log"))
            for name, checkout in checkouts.items()
        }
        found = stack.enter_context(opened([row for row in ROWS if row.key in options.only], servers))
        compared = [row for row in found if row.loads]
        now = time.monotonic()
        end = began + options.seconds
        share(compared, now + FIRST_PASS * (end - now))
        share([row for row in compared if row.verdict is not Verdict.OK], end)
    print(table(["row", "requests/s", "requests per CPU second", "pairs", "verdict"], [row.cells() for row in found]))
    print(f"\nThis checkout over {commit}. Meanwhile {watch.seen().text()}.")
    slower = [row.row.title for row in compared if row.verdict is Verdict.SLOWER]
    if slower:
        raise SystemExit(f"Slower than {LIMIT} with confidence: {', '.join(slower)}")
