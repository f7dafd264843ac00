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
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench import wrk
from bench.arguments import names_among
from bench.grpc.load import build_or_exit
from bench.guard import release
from bench.guard.rows import BUILD, ROWS, NotServed, Row, build
from bench.guard.server import AllDoors
from bench.guard.verdict import LIMIT, Verdict
from bench.machine_load import LoadWatch
from bench.tables import table
from bench.turns import Load, NothingAnswered, Ratio, Turn, Turns
from bench.vertex.cases import TABULAR
from tests.project import ROOT

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
    commit = release.find(ROOT, options.against)
    print(f"this checkout beside {commit}", file=sys.stderr, flush=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    models = BUILD / "models"
    build(models)
    watch = LoadWatch()
    with release.checked_out(ROOT, commit) as folder, ExitStack() as stack:
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
