"""Fail if this checkout is slower than the last release at any entry point; it says so in two minutes.

    make bench-guard                                     beside the newest tag v* before HEAD
    make bench-guard GUARD_ARGS='--against main'         beside another commit
    python -m bench guard --against ../before            beside another checkout
    python -m bench guard --only cache,sequences         some rows only
    python -m bench guard --instructions                 the server's instructions per request, as CI counts them

Without a tag the other commit is `BASELINE`. Both servers run at the same time in this environment, with the same
models and all ports open, and are asked in turns of a fraction of a second. A ratio is this checkout's figure over the
other's: the median of the pairs' ratios, with the 95 % interval of that median in brackets. A row is slower if one of
its intervals is all below 0.95: that of requests/s, or that of requests per second of the server's CPU time, which
other work on the machine moves less. The first two thirds of the time are shared by all rows; the rest goes to those
with an interval that reaches below 0.95, and all their pairs count. A row is new if the other commit does not serve it.

With `--instructions` both servers run under callgrind and are asked on one connection: a row is slower if a request
takes more than 1.03 times the instructions.

The exit status is 1 if a row is slower, or if this checkout does not serve one.
"""

from __future__ import annotations

import argparse
import enum
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import instructions
from bench.cases import ADD_SUB, ADD_SUB_JSON, ECHO, IMAGE_MEAN
from bench.clients import BUILD, Load
from bench.loads import csv, grpc, infer, instances, sequences, shared_memory
from bench.machine import LoadWatch
from bench.models import python_models, repositories
from bench.models.repositories import CACHED, TABULAR
from bench.results import Ratio, Turn, names_among, table
from bench.runner import Ask, Interleaved, NothingMeasured, NotServed
from bench.servers.server import GRPC, SAGEMAKER, VERTEX, VERTEX_ROUTES, Server, trident
from tests.project import ROOT

FOLDER = BUILD / "guard"
THIS, OTHER = "this", "other"
LIMIT = 0.95
SECONDS = 105.0
"""Seconds until the end of the last turn: a row may take a few pairs longer, and the servers need time to stop."""
FIRST_PASS = 2 / 3
TURN_S = 0.1
WARM_UP_S = 0.3
# Below, the interval is that of the slowest and the fastest pair.
LEAST_PAIRS = 8
CACHE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    ask: Ask
    connections: int = 16


ROWS = (
    Row("json", "HTTP, JSON", infer(ADD_SUB_JSON)),
    Row("binary", "HTTP, binary", infer(ADD_SUB)),
    Row("image", "HTTP, image as JSON", infer(IMAGE_MEAN), 4),
    Row("unary", "gRPC, unary", grpc(ADD_SUB)),
    Row("stream", "gRPC, stream", grpc(ADD_SUB, streams=True)),
    Row("shm", "shared memory, 600 KB", shared_memory(ECHO, 4), 4),
    Row("python", "Python model", infer(ADD_SUB, model=python_models.ADD_SUB)),
    Row("ensemble", "ensemble of two steps", infer(ADD_SUB, model="ensemble", checked=False)),
    Row("sequences", "sequences", sequences(16)),
    Row("cache", "cache hit", infer(ADD_SUB, model=CACHED)),
    Row("sagemaker", "SageMaker, CSV of 100 items", csv(100), 4),
    Row("vertex", "Vertex AI, predict of 100 instances", instances(100), 4),
)
COUNTED = ("json", "binary", "ensemble", "sequences", "cache")
"""The rows whose instructions are counted: small requests over HTTP, to models in the server's process."""


def build(repository: Path) -> None:
    """Write the models of all rows under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    repositories.build(repository)
    repositories.build_cached(repository)
    repositories.build_ensemble(repository)
    repositories.build_sequences(repository)
    repositories.build_tabular(repository)
    python_models.build_one(repository)


def all_ports(checkout: Path, repository: Path, log: Path) -> Server:
    """The server of `checkout` with every entry point; the tabular model answers at the ports of both platforms.

    Options that the checkout does not know yet are left out, and a model that it cannot load is no error: what it
    does not serve is seen when it is asked.
    """
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": TABULAR} | VERTEX_ROUTES
    options = [
        "--exit-on-error=false",
        "--strict-readiness=false",
        "--http-workers=0",
        *dict.fromkeys([*SAGEMAKER, *VERTEX]),
        f"--vertex-ai-default-model={TABULAR}",
        "--allow-client-shm=true",
        f"--cache-config=local,size={CACHE_BYTES}",
    ]
    # Neither server shall have the heap of a process that compiled its modules itself.
    packages = [str(checkout / "trident" / name) for name in ("core", "adapters", "app")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], check=True)
    return trident(repository, log, *GRPC, *options, checkout=checkout, environment=environment)


TAGS = "v*"
# Before any release: the commit at which models were last measured beside Triton.
BASELINE = "54a136843060a944198c79e3a6a30518c19e9379"


@dataclass(frozen=True, slots=True)
class Commit:
    """`why` says how it was chosen. The folder of another checkout has no `sha`."""

    sha: str
    subject: str
    why: str

    def __str__(self) -> str:
        return f"{self.sha[:12]} ({self.why}): {self.subject}" if self.sha else self.subject


def find(checkout: Path, against: str | None = None, baseline: str = BASELINE) -> Commit:
    """The commit or the folder of a checkout that `against` names, else the newest tag `v*` before HEAD, else the
    baseline.

    A tag at HEAD itself does not count: it would be compared with itself. SystemExit says what to do if there is none.
    """
    if against and Path(against, "trident").is_dir():
        return Commit("", str(Path(against).resolve()), "")
    name, why = baseline, f"the baseline, because no tag {TAGS} comes before HEAD"
    tag = _git(checkout, "describe", "--tags", "--abbrev=0", f"--match={TAGS}", "HEAD^")
    if against:
        name, why = against, f"--against={against}"
    elif not tag.returncode:
        name, why = tag.stdout.strip(), f"the last release, {tag.stdout.strip()}"
    found = _git(checkout, "log", "-1", "--format=%H %s", "--end-of-options", name)
    if found.returncode:
        raise SystemExit(
            f"There is no commit {name} to compare with ({why}). Name one with --against, or fetch more history: "
            "git fetch --tags --unshallow"
        )
    sha, _, subject = found.stdout.strip().partition(" ")
    return Commit(sha, subject, why)


@contextmanager
def checked_out(checkout: Path, commit: Commit) -> Iterator[Path]:
    """The folder of the commit's files, which is gone at the end, or that of another checkout."""
    if not commit.sha:
        yield Path(commit.subject)
        return
    with tempfile.TemporaryDirectory(prefix="trident-guard-") as parent:
        folder = Path(parent, "checkout")
        done = _git(checkout, "worktree", "add", "--quiet", "--detach", str(folder), commit.sha)
        if done.returncode:
            raise SystemExit(f"git could not check {commit.sha[:12]} out: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            _git(checkout, "worktree", "remove", "--force", str(folder))


def _git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("`git` is not installed. On Debian and Ubuntu: apt install git") from None


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


@dataclass(slots=True)
class Measured:
    """One row and its pairs of turns so far; no loads if the other checkout does not serve it."""

    row: Row
    loads: dict[str, Load]
    pairs: list[dict[str, Turn]] = field(default_factory=list)

    @property
    def rate(self) -> Ratio:
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

        A pair in which a server had no core to answer is left out; NothingMeasured if that is no exception.
        """
        least = len(self.pairs) + LEAST_PAIRS
        left_out = 0
        with Interleaved(
            self.loads, connections=self.row.connections, seconds=TURN_S, warm_up_s=WARM_UP_S
        ) as interleaved:
            while len(self.pairs) < least or time.monotonic() < until:
                try:
                    self.pairs.append(interleaved.round(len(self.pairs)))
                except NothingMeasured:
                    left_out += 1
                    if left_out > LEAST_PAIRS:
                        raise
        if interleaved.errors:
            raise RuntimeError(f"{self.row.title}: {interleaved.errors} requests failed; the logs are in {FOLDER}")


def share(rows: Sequence[Measured], until: float) -> None:
    """Measure the rows one after another; each has an equal part of the time that is left."""
    for index, row in enumerate(rows):
        left = until - time.monotonic()
        row.measure(time.monotonic() + left / (len(rows) - index))
        print(" | ".join(row.cells()), file=sys.stderr, flush=True)


@contextmanager
def opened(rows: Sequence[Row], servers: dict[str, Server]) -> Iterator[list[Measured]]:
    """The rows with their loads. SystemExit if this checkout does not serve one of them."""
    with ExitStack() as stack:
        found = []
        for row in rows:
            try:
                loads = {THIS: stack.enter_context(row.ask(servers[THIS]))}
            except NotServed as error:
                raise SystemExit(f"{row.title}: this checkout does not serve it: {error}") from error
            try:
                loads[OTHER] = stack.enter_context(row.ask(servers[OTHER]))
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
    parser.add_argument("--against", help="the other commit, or the folder of a checkout; default: the last release")
    parser.add_argument("--only", type=names_among(keys), default=keys, help=", ".join(keys))
    parser.add_argument("--instructions", action="store_true", help="count instructions; see above")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of the whole run; default {SECONDS:g}")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    began = time.monotonic()
    options = parse(arguments)
    # A job that is cancelled leaves no server and no worktree.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    commit = find(ROOT, options.against, instructions.BASELINE if options.instructions else BASELINE)
    print(f"this checkout beside {commit}", file=sys.stderr, flush=True)
    models = FOLDER / "models"
    build(models)
    watch = LoadWatch()
    with checked_out(ROOT, commit) as folder, ExitStack() as stack:
        checkouts = {OTHER: folder, THIS: ROOT}
        servers = {name: all_ports(checkout, models, FOLDER / f"{name}.log") for name, checkout in checkouts.items()}
        if options.instructions:
            shutil.rmtree(models / python_models.ADD_SUB)
            for name, server in servers.items():
                instructions.under_callgrind(server, FOLDER / name)
        for server in servers.values():
            stack.enter_context(server)
        keys = [key for key in options.only if key in COUNTED or not options.instructions]
        found = stack.enter_context(opened([row for row in ROWS if row.key in keys], servers))
        compared = [row for row in found if row.loads]
        if options.instructions:
            _count(compared, commit)
            return
        now = time.monotonic()
        end = began + options.seconds
        share(compared, now + FIRST_PASS * (end - now))
        share([row for row in compared if row.verdict is not Verdict.OK], end)
    print(table(["row", "requests/s", "requests per CPU second", "pairs", "verdict"], [row.cells() for row in found]))
    print(f"\nThis checkout over {commit}. Meanwhile {watch.load().text()}.")
    slower = [row.row.title for row in compared if row.verdict is Verdict.SLOWER]
    if slower:
        raise SystemExit(f"Slower than {LIMIT} with confidence: {', '.join(slower)}")


def _count(rows: Sequence[Measured], commit: Commit) -> None:
    """Print the instructions of each row; SystemExit if a row is slower."""
    cells, slower = [], []
    for each in rows:
        this, other = _least(each, [math.inf, math.inf])
        if this > instructions.LIMIT * other:
            # Timers and the garbage collector only add, so a second look may find fewer.
            this, other = _least(each, [this, other])
        if this > instructions.LIMIT * other:
            slower.append(each.row.title)
        cells.append([each.row.title, f"{this:,.0f}", f"{other:,.0f}", f"{this / other:.3f}"])
        print(" | ".join(cells[-1]), file=sys.stderr, flush=True)
    print(table(["row", "instructions per request", "of the other", "ratio"], cells))
    print(f"\nThis checkout over {commit}.")
    if slower:
        raise SystemExit(f"More than {instructions.LIMIT} times the instructions: {', '.join(slower)}")


def _least(row: Measured, known: Sequence[float]) -> list[float]:
    """The instructions per request of this checkout and of the other, or `known` where these are fewer."""
    loads = [row.loads[name] for name in (THIS, OTHER)]
    folders = [FOLDER / name for name in (THIS, OTHER)]
    return [min(each) for each in zip(map(instructions.per_request, loads, folders), known, strict=True)]
