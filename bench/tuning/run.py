"""Measure a batcher with a target beside the best fixed setting; write bench/results/<date>-<cpu>-tuning.*.

    python -m bench tuning                                about 5 minutes
    python -m bench tuning --only steady --seconds 5 --rate 500
    python -m bench tuning --options=--http-workers=2

The model behaves as on an accelerator: an execution takes 4 ms and 0.05 ms for each item, without CPU. The search tries
each delay with each size. The client does not wait for answers: latencies count from the moment at which a request is
due.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench.arguments import names_among, positive
from bench.figures import Figures
from bench.publication import Publication, add_publication_arguments
from bench.servers.server import Server, trident
from bench.tuning.models import BODY, LARGEST, TARGET, build, name_of
from bench.tuning.open_loop import open_loop
from bench.tuning.traces import TRACES
from core.scheduling.latency_target import BatchSetting
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "tuning"
CONDITIONS = "Server, models and client share the cores."
DELAYS_MS = (0, 2, 5)
SIZES = (8, 16, LARGEST)
SETTINGS = [BatchSetting(delay * 1_000_000, size) for delay, size in itertools.product(DELAYS_MS, SIZES)]
# A window of the answers: its 99th percentile is compared with the target.
WINDOW_S = 1.0
WARM_UP_S = 2.0
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """One model under one load: `good` answers per second in time, the shares of windows under the target, and p99."""

    good: float
    windows: float
    p99_ms: float
    mean_batch: float


def seen_of(arrivals: Sequence[int], latencies: Sequence[int], target_ms: float, mean_batch: float) -> Seen:
    """Without the requests that came while the load began. One without an answer took as long as any."""
    begin_ns = int(WARM_UP_S * 1e9)
    pairs = [(at, latency) for at, latency in zip(arrivals, latencies, strict=True) if at >= begin_ns]
    windows: dict[int, list[float]] = {}
    for at, latency in pairs:
        windows.setdefault(int(at / 1e9 / WINDOW_S), []).append(latency / _MS if latency >= 0 else float("inf"))
    under = [_p99(window) <= target_ms for window in windows.values()]
    good = sum(latency <= target_ms for window in windows.values() for latency in window)
    all_ms = [latency for window in windows.values() for latency in window]
    seconds = (arrivals[-1] - begin_ns) / 1e9
    return Seen(good / seconds, sum(under) / len(under), _p99(all_ms), mean_batch)


def _p99(latencies: Sequence[float]) -> float:
    return sorted(latencies)[int(0.99 * (len(latencies) - 1))]


def measure(server: Server, model: str, arrivals: Sequence[int], target_ms: float) -> Seen:
    items, executions = server.counts(model)
    latencies = open_loop(server.port, f"/v2/models/{model}/infer", BODY, arrivals)
    more_items, more_executions = server.counts(model)
    mean = (more_items - items) / max(1, more_executions - executions)
    seen = seen_of(arrivals, latencies, target_ms, mean)
    print(f"{model}: {seen}", file=sys.stderr, flush=True)
    return seen


def compare(results: Figures, server: Server, name: str, options: argparse.Namespace) -> None:
    """Note what the target and the best fixed setting achieve under one load."""
    arrivals = TRACES[name](options.rate, options.seconds + WARM_UP_S)
    tuned = [measure(server, TARGET, arrivals, options.target)]
    fixed = {}
    for setting in SETTINGS:
        fixed[setting] = measure(server, name_of(setting), arrivals, options.target)
    tuned.append(measure(server, TARGET, arrivals, options.target))
    best = max(SETTINGS, key=lambda setting: (fixed[setting].good, fixed[setting].windows))
    shown = {
        "target": tuned,
        f"best fixed: {best.delay_ns / _MS:g} ms, {best.max_size} items": [fixed[best]],
        "median of all fixed": list(fixed.values()),
    }
    load = f"{name}, {options.rate} requests/s"
    for what, found in shown.items():
        results.note(load, f"{what}: answers in time", "1/s", [seen.good for seen in found])
        results.note(load, f"{what}: windows under the target", "%", [100 * seen.windows for seen in found])
        results.note(load, f"{what}: p99", "ms", [seen.p99_ms for seen in found])
        results.note(load, f"{what}: mean batch", "items", [seen.mean_batch for seen in found])
    mean = sum(seen.good for seen in tuned) / len(tuned)
    results.at_least(load, "answers in time, over those of the best fixed setting", 0.9, mean / fixed[best].good)
    windows = sum(seen.windows for seen in tuned) / len(tuned)
    results.at_least(load, "windows under the target, %", 95, 100 * windows)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(TRACES)), default=list(TRACES), help=", ".join(TRACES))
    parser.add_argument("--rate", type=positive, default=800, help="requests per second, on average")
    parser.add_argument("--seconds", type=positive, default=8, help="of each load, without its first two")
    parser.add_argument("--target", type=float, default=40.0, help="for the 99th percentile, in milliseconds")
    parser.add_argument("--options", type=shlex.split, default=[], help="options for the server, in one text")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    publication = Publication(options)
    results = Figures(shlex.join(["python", "-m", "bench", "tuning", *arguments]), CONDITIONS)
    build(BUILD / "models", options.target, SETTINGS)
    server = trident(BUILD / "models", BUILD / "server.log")
    server.command += options.options
    with server:
        for name in options.only:
            compare(results, server, name, options)
    part = "" if len(options.only) == len(TRACES) else "-" + "-".join(options.only)
    results.publish(publication, f"-tuning{part}")
