"""The search of `trident tune`: predictions from executions, and races between the most promising candidates.

The figure of a candidate is the most requests/s with which 99 of 100 keep the latency. A few executions predict it. A
sweep of those that promise most finds it roughly, by doubling the requests under way. A race between the best of the
sweeps and the model as it is decides: their servers run at the same time and are asked in turns, so that what else the
machine does hits all alike. The last two and the model as it is are compared turn by turn, and a way that is not shown
to be better than the model as it is loses to it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from google.protobuf import text_format

from trident.core.backends.cpu_budget import plan_threads
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import ServerError
from trident.tools.bench.candidates import (
    AROUND_S,
    NEAR,
    SIZES,
    THREADS,
    Candidate,
    Executions,
    Promise,
    engines,
    execute,
    may_batch,
    most_difference,
    paddings,
    promises,
)
from trident.tools.bench.client import LoadClient
from trident.tools.bench.measure import PRELOADED, Difference, Level, Server, differences, measure, pooled, started
from trident.tools.bench.measure import number as figure
from trident.tools.bench.requests import Encoding, Inputs, make_target

AS_IT_IS = Candidate()
_MOST_CONCURRENCY = 256
_GAIN = 1.03
_REQUESTS = 30
_MOST_LIVE = 6
_SHORTEST_S, _LONGEST_S = 0.1, 1.5
# Shares of the time after the model as it is, until which ways are executed, swept, delayed and raced. The last
# comparison has the rest.
_EXECUTED, _SWEPT, _DELAYED, _RACED = 0.2, 0.37, 0.42, 0.55
_SWEPT_WAYS, _RACED_WAYS, _LAST_WAYS = 8, 4, 2
_RACE_ROUNDS, _LAST_ROUNDS = 3, 12
# The interval of fewer rounds is too narrow: noise would pass for a gain.
_LEAST_ROUNDS = 6
# Less may be noise: what may change the answers has to take so much less time in executions.
_WORTH = 1.1
# The share of the target that the 90th percentile of a sweep may take: the 99th is about a quarter more.
_RESERVE = 0.75
# And the share that the 99th may take in a race.
_ALMOST = 0.95


@dataclass(slots=True)
class Trial:
    """The measurements of a candidate: the levels of its sweep, and those of its turns in races, which count more.
    `memory_mb` is that of its processes, 0 if it was not read."""

    candidate: Candidate
    levels: list[Level] = field(default_factory=list)
    raced: list[Level] = field(default_factory=list)
    memory_mb: float = 0.0
    error: str = ""

    def best(self, target_ms: float) -> Level | None:
        """The level with the most requests/s whose p99 is within the target."""
        return self._most([level for level in self.counted if level.p99 <= target_ms])

    def likely_best(self, target_ms: float) -> Level | None:
        """The best in the search. A single pause in few turns must not rule out a good way."""
        return self._most([level for level in self.counted if self.latency(level) <= target_ms])

    def nearest(self, target_ms: float) -> Level:
        """The likely best, or the one that is least above the target."""
        return self.likely_best(target_ms) or min(self.counted, key=self.latency)

    def latency(self, level: Level) -> float:
        """The 99th percentile, or of few turns the 90th."""
        return level.percentiles["99" if level in self.raced and len(level.slices) >= _LEAST_ROUNDS else "90"]

    @staticmethod
    def _most(levels: Sequence[Level]) -> Level | None:
        return max((level for level in levels if level.requests), key=lambda level: level.rate, default=None)

    @property
    def counted(self) -> list[Level]:
        return self.raced or self.levels

    @property
    def fastest(self) -> Level:
        return max(self.levels, key=lambda level: level.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The 99th percentile within `target_ms`; `rate` is the traffic that is enough, 0 for as much as possible.
    `memory_mb` bounds the processes of a server."""

    target_ms: float
    rate: float = 0.0
    memory_mb: float = math.inf

    def value(self, trial: Trial) -> tuple[float, float, float]:
        """Larger is better.

        What cannot meet the target is compared by how far it is off; what has enough, by how little it takes.
        """
        if trial.error or not trial.counted or trial.memory_mb > self.memory_mb:
            return (-math.inf, 0, 0)
        level = trial.likely_best(self.target_ms)
        if level is None:
            return (-min(trial.latency(each) for each in trial.counted), 0, 0)
        used = -float(trial.candidate.cores)
        # A fifth in reserve: traffic is not even.
        if self.rate and level.rate >= 1.2 * self.rate:
            return (1.2 * self.rate, used, -level.p99)
        return (level.rate, used, 0)


# --- the trials


class Bench:
    """Measures candidates of a model, each in a server of its own with a copy of the model. A context manager.

    Servers of candidates that are still in the race stay, idle, while others are measured. `tell` shows progress.
    """

    def __init__(
        self,
        model: str,
        folder: Path,
        config: ModelConfig,
        objective: Objective,
        inputs: Callable[[ModelSpec], Sequence[Inputs]],
        way: Encoding,
        tell: Callable[[str], None],
        *,
        lower: bool = False,
        longest: int = 0,
    ) -> None:
        self.model, self.folder, self.config = model, folder, config
        self.objective, self._inputs, self._way, self._tell = objective, inputs, way, tell
        self._lower, self._longest = lower, longest
        self.trials: dict[Candidate, Trial] = {}
        # How far the answers of other engines and precisions are from the model's own.
        self.differences: dict[tuple[object, ...], float] = {}
        self._own: Executions | None = None
        self._complete, self._requests = config, list[Inputs]()
        self._live: dict[Candidate, tuple[ExitStack, Server, LoadClient]] = {}
        self.turns: dict[tuple[Candidate, int], list[Level]] = {}
        self._ending = ThreadPoolExecutor(_MOST_LIVE)
        self._most_live = _MOST_LIVE

    def __enter__(self) -> Bench:
        multiprocessing.set_forkserver_preload([*PRELOADED, "trident.core.backends.openvino.compiler"])
        return self

    def __exit__(self, *_: object) -> None:
        for candidate in list(self._live):
            self.stop(candidate)
        self._ending.shutdown()

    def stop(self, candidate: Candidate) -> None:
        """Have its server end, without waiting for it."""
        if candidate in self._live:
            self._ending.submit(self._live.pop(candidate)[0].close)

    def server(self, candidate: Candidate) -> tuple[Server, LoadClient]:
        """The candidate's, started if it does not run. Raises ServerError if the model cannot be loaded so."""
        if candidate not in self._live:
            while len(self._live) >= self._most_live:
                self.stop(self.ranked(self._live)[-1].candidate)
            self._tell(f"starting {candidate.text}")
            with ExitStack() as stack:
                root = stack.enter_context(tempfile.TemporaryDirectory(prefix="trident-tune-"))
                copy_model(self.folder, Path(root, self.model), candidate.apply(self.config))
                server = stack.enter_context(started(root, self.model, protocols=(self._way.protocol,), forked=True))
                spec = server.spec(self.model, "")
                target = make_target(spec, self._inputs(spec), server.targets[self._way.protocol], self._way)
                client = stack.enter_context(LoadClient(target))
                self._live[candidate] = (stack.pop_all(), server, client)
        _, server, client = self._live[candidate]
        return server, client

    def promised(self, cores: int, until: float) -> list[Promise]:
        """The ways to run the model, those first that promise most; of equal ones, one of each engine, and the one that
        uses less."""
        server, _ = self.server(AS_IT_IS)
        config, spec = server.config(self.model, ""), server.spec(self.model, "")
        self._complete, self._requests = config, list(self._inputs(spec))
        if not self.config.input:
            # The completed configuration is written down: with other batches it would complete something else.
            self.config = config
        largest = SIZES[-1] * self._items if may_batch(config) else 0
        known = self.trials[AS_IT_IS].fastest
        http_s = _beside_execution(known, config, cores)
        found: list[tuple[int, Promise]] = []
        refused: set[tuple[object, ...]] = set()
        full: dict[Candidate, Executions] = {}
        for engine in engines(config, self.folder, cores, lower=self._lower):
            if engine.backend not in THREADS:
                found.append((0, Promise(replace(engine, batch=largest), known.rate, known.concurrency, 0.0)))
            elif engine.answers not in refused and (not found or time.monotonic() < until):
                seen = self._executed(engine, batch=largest, beside=full.get(replace(engine, precision="")))
                if seen is None:
                    refused.add(engine.answers)
                    continue
                full[engine] = seen
                target_s = self.objective.target_ms / 1e3
                given = promises(engine, seen.times, items=self._items, cores=cores, http_s=http_s, target_s=target_s)
                found += enumerate(given)

        def order(given: tuple[int, Promise]) -> tuple[int, float, float]:
            place, way = given
            used = way.candidate.cores if way.rate else way.shortest_s
            return -round(math.log(max(way.rate, 1e-3), NEAR)), place, used

        ways = [way for _, way in sorted(found, key=order)]
        may_try = bool(self._longest) or time.monotonic() < until
        return [*(self._padded(ways[0]) if may_try else ()), *ways]

    def _padded(self, best: Promise) -> Iterator[Promise]:
        """The way with padding, if executions of mixed sizes take less time then."""
        padded = paddings(best.candidate, self._complete, self._requests, self._longest)
        most = max(1, best.candidate.batch // self._items)
        plain = self._executed(best.candidate, most=most) if padded else None
        for way in padded:
            if plain and self._executed(way, most=most, beside=plain):
                yield replace(best, candidate=way)

    @property
    def _items(self) -> int:
        """Of a request."""
        return int(self._requests[0][0].array.shape[0]) if may_batch(self._complete) else 1

    def _executed(
        self, way: Candidate, *, batch: int = 0, most: int = 0, beside: Executions | None = None
    ) -> Executions | None:
        """Its executions; None if it cannot run so, answers otherwise than the model as it is, or takes no less time
        than what it has to be better than. Then its trial says which."""
        self._tell(f"executing {way.text}")
        config = replace(way, batch=batch or way.batch).apply(self._complete)
        version = max(int(each.name) for each in self.folder.iterdir() if each.name.isdecimal())
        try:
            seen = execute(
                self.folder,
                config,
                version,
                self._requests,
                self.objective.target_ms / 1e3,
                most=most,
                compared=way.answers not in self.differences,
            )
        except ServerError as error:
            reason = error.message.splitlines()[0][:200]
        else:
            self._own = self._own or seen
            difference = self.differences.setdefault(way.answers, seen.difference(self._own))
            allowed = most_difference(way)
            is_near = difference <= allowed
            if is_near and (beside is None or seen.is_faster(beside, _WORTH)):
                return seen
            reason = "executions take as long" if is_near else differs(difference, allowed)
        self.trials[way] = Trial(way, error=reason)
        return None

    def sweep(self, candidate: Candidate, seconds: float, start: int = 0) -> Trial:
        """Double the requests under way while that gains and leaves room. KeyboardInterrupt after Ctrl-C.

        From `start`, a load that suits a similar way, one level without a gain is enough; if the first is too slow, or
        the best, the load is halved until it is not.
        """
        trial = self.trials.setdefault(candidate, Trial(candidate))
        try:
            server, _ = self.server(candidate)
            last = self.run(candidate, start or 1, _SHORTEST_S / 2)
        except ServerError as error:
            trial.error = error.message.splitlines()[-1].rpartition('] "')[2][:200]
            return trial
        levels = trial.levels = []
        trial.raced = []
        concurrency, patience = start or 1, 1 if start else 2
        while concurrency <= _MOST_CONCURRENCY:
            last = self.run(candidate, concurrency, _long_enough(seconds, concurrency, last))
            levels.append(last)
            earlier = max((each.rate for each in levels[:-patience]), default=0.0)
            # The median, which a pause does not move. With twice the requests it would be twice as long.
            if self._has_no_room(last) or max(each.rate for each in levels[-patience:]) < _GAIN * earlier:
                break
            concurrency *= 2
        while start > 1 and (self._has_no_room(levels[0]) or levels[0] is max(levels, key=lambda level: level.rate)):
            start //= 2
            levels.insert(0, self.run(candidate, start, _long_enough(seconds, start, levels[0])))
        trial.memory_mb = server.memory_mb()
        self._most_live = max(
            1, min(_MOST_LIVE, int(_available_mb() / 2 / max(1.0, trial.memory_mb)) + len(self._live))
        )
        return trial

    def _has_no_room(self, level: Level) -> bool:
        return level.percentiles["50"] > 0.6 * self.objective.target_ms

    def run(self, candidate: Candidate, concurrency: int, seconds: float) -> Level:
        server, client = self.server(candidate)
        level = measure(
            client,
            server,
            self.model,
            seconds=seconds,
            concurrency=concurrency,
            tick=lambda: self._tell(f"{candidate.text}: {concurrency} under way"),
        )
        if client.interrupted:
            raise KeyboardInterrupt
        return level

    def ranked(self, candidates: Iterable[Candidate] | None = None) -> list[Trial]:
        """The best first."""
        among = set(self.trials if candidates is None else candidates)
        found = [trial for candidate, trial in self.trials.items() if candidate in among]
        return sorted(found, key=self.objective.value, reverse=True)

    def race(self, candidates: Sequence[Candidate], until: float, rounds: int) -> None:
        """Ask the candidates in turns, in about so many rounds, each at a load with which it should keep the target,
        and at less once it does not."""
        loads = [(candidate, *self._load(self.trials[candidate])) for candidate in candidates]
        if AS_IT_IS in candidates and not self.trials[AS_IT_IS].raced:
            # A way must not be better only because the model as it is was asked at a lower load.
            own, similar = self._load(self.trials[AS_IT_IS])
            most = int(_RESERVE * self.objective.target_ms / 1e3 * similar.rate)
            if (load := min(most, max(load for _, load, _ in loads))) > own:
                loads.append((AS_IT_IS, load, similar))
        for candidate in candidates:
            self.server(candidate)
        seconds = max(_SHORTEST_S, min(_LONGEST_S, (until - time.monotonic()) / rounds / len(loads)))
        took = 0.0
        for done in range(2 * rounds):
            # Rounds without which nothing is shown may end a little late.
            if took and time.monotonic() + (took / 2 if done < _LEAST_ROUNDS else took) > until:
                break
            began = time.monotonic()
            for candidate, load, similar in loads:
                level = self.run(candidate, load, _long_enough(seconds, load, similar))
                self.turns.setdefault((candidate, load), []).append(level)
                turns = [turns for (each, _), turns in self.turns.items() if each == candidate]
                enough = [each for each in turns if len(each) >= _LEAST_ROUNDS] or turns
                self.trials[candidate].raced = [pooled(each) for each in enough]
            for number, (candidate, load, similar) in enumerate(loads):
                if len(seen := self.turns[candidate, load]) >= _RACE_ROUNDS:
                    loads[number] = (candidate, self._bearable(pooled(seen)), similar)
            loads.reverse()
            took = time.monotonic() - began
        for candidate in candidates:
            self.trials[candidate].memory_mb = max(
                self.trials[candidate].memory_mb, self.server(candidate)[0].memory_mb()
            )

    def _load(self, trial: Trial) -> tuple[int, Level]:
        """The load to ask a candidate at, and a level near it. After a sweep, that is between powers of two, of which
        one may be far below the target and the next just above."""
        best = trial.nearest(self.objective.target_ms)
        if trial.raced:
            return self._bearable(best), best
        # With more under way than give about as much, requests only wait longer.
        best = next(each for each in trial.levels if _GAIN * each.rate >= best.rate)
        aim, at = _RESERVE * self.objective.target_ms, max(1e-3, trial.latency(best))
        higher = [
            each for each in trial.levels if each.concurrency > best.concurrency and each.rate > _GAIN * best.rate
        ]
        if at < aim and higher:
            share = (aim - at) / (trial.latency(higher[0]) - at)
            load = best.concurrency + share * (higher[0].concurrency - best.concurrency)
        else:
            load = best.concurrency * min(1.0, aim / at)
        return max(1, int(load)), best

    def _bearable(self, level: Level) -> int:
        """The load of a level, or less if its latency leaves no reserve."""
        most_ms = _ALMOST * self.objective.target_ms
        if level.p99 <= most_ms:
            return level.concurrency
        return max(1, min(level.concurrency - 1, int(_ALMOST * most_ms / level.p99 * level.concurrency)))

    def gained(self, before: Candidate, after: Candidate) -> list[Difference]:
        """Compare two candidates in the rounds that they had together; empty if those are too few."""
        sides = []
        for trial in (self.trials[before], self.trials[after]):
            load = trial.nearest(self.objective.target_ms).concurrency if trial.raced else 0
            sides.append(self.turns.get((trial.candidate, load), []))
        count = min(map(len, sides))
        first, second = (side[len(side) - count :] for side in sides)
        if before == after or count < _LEAST_ROUNDS or not all(level.requests for level in (*first, *second)):
            return []
        return differences(first, second, paired=True)

    def chosen(self) -> Trial:
        """The best way that is shown to be better than the model as it is, otherwise that.

        Where a rate is enough, fewer resources are the aim, and where the model as it is takes too much memory, less of
        it: no more is to be shown.
        """
        objective, before = self.objective, self.trials[AS_IT_IS]
        kept = before.best(objective.target_ms)
        for trial in self.ranked():
            if trial is before or objective.value(trial) <= objective.value(before):
                break
            is_less = (objective.rate and trial.best(objective.target_ms)) or before.memory_mb > objective.memory_mb
            if trial.raced and is_less:
                return trial
            shown = {each.what for each in self.gained(AS_IT_IS, trial.candidate) if each.verdict == "better"}
            if shown & {"requests/s", "requests/s" if kept else "p99"}:
                return trial
        return before


def _long_enough(seconds: float, concurrency: int, near: Level) -> float:
    """For a percentile of a slow model, and for the requests under way to be exchanged some times, at the pace of the
    level `near`."""
    each_s = near.mean / 1e3 / near.concurrency
    return max(seconds, min(8 * seconds, (_REQUESTS + 3 * concurrency) * each_s))


def _beside_execution(level: Level, config: ModelConfig, cores: int) -> float:
    """Seconds that a request takes of a core beside its execution: in the server's HTTP, and in the client."""
    times = level.server
    if times is None or not level.rate:
        return 0.0
    executed_s = sum(times.costs[size] * count for size, count in times.batches.items()) / 1e3
    around_s = AROUND_S * sum(times.batches.values())
    items = sum(int(size) * count for size, count in times.batches.items())
    threads = plan_threads(cores, 1).intra_op_threads
    for name in THREADS.values():
        threads = int(config.parameters[name].string_value) if name in config.parameters else threads
    return max(0.0, cores / level.rate - (threads * executed_s + around_s) / max(1, items))


def search(bench: Bench, cores: int, seconds: float) -> None:
    """Measure what `seconds` allow; the trials are in `bench`, also after KeyboardInterrupt."""
    began = time.monotonic()
    # The model as it is comes first: what a request takes beside its execution follows from it.
    unit = max(_SHORTEST_S, min(_LONGEST_S, seconds / 60))
    before = bench.sweep(AS_IT_IS, unit)
    if before.error:
        return
    since = time.monotonic()
    left = began + seconds - since
    if left <= 0:
        return

    def until(share: float) -> float:
        return since + share * left

    for number, way in enumerate(bench.promised(cores, until(_EXECUTED))[:_SWEPT_WAYS]):
        if number and time.monotonic() > until(_SWEPT):
            break
        bench.sweep(way.candidate, unit, way.load)
    best = bench.ranked()[0]
    if best.candidate.batch > 1 and time.monotonic() < until(_DELAYED):
        delayed = replace(best.candidate, delay_us=round(100 * bench.objective.target_ms))
        bench.sweep(delayed, unit, best.fastest.concurrency)
    others = [trial.candidate for trial in bench.ranked() if trial is not before and not trial.error][:_RACED_WAYS]
    if others:
        bench.race([AS_IT_IS, *others], until(_RACED), _RACE_ROUNDS)
        last = [trial.candidate for trial in bench.ranked(others)[:_LAST_WAYS]]
        bench.race([AS_IT_IS, *last], began + seconds, _LAST_ROUNDS)


def copy_model(folder: Path, to: Path, config: ModelConfig) -> None:
    """A copy with another configuration. Files are links where they can be, because a server only reads them."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    shutil.copytree(folder, to, copy_function=link, ignore=shutil.ignore_patterns("config.pbtxt", "configs"))
    (to / "config.pbtxt").write_text(text_format.MessageToString(config))


def _available_mb() -> float:
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) / 1024


# --- the report


def reasons(bench: Bench, chosen: Trial) -> Iterator[str]:
    """For each setting of the chosen candidate: what it reached, and what the best with another value did."""
    objective = bench.objective
    for name, title in (
        ("backend", "backend"),
        ("precision", "precision"),
        ("instances", "instance_group count"),
        ("threads", "threads of an execution"),
        ("batch", "largest batch"),
        ("delay_us", "max_queue_delay_microseconds"),
        ("padding", "padding"),
    ):
        own = getattr(chosen.candidate, name)
        others: dict[object, Trial] = {}
        for trial in bench.ranked():
            value = getattr(trial.candidate, name)
            if value != own and value not in ("", 0):
                others.setdefault(value, trial)
        if own in ("", 0) and not others:
            continue
        shown = "; ".join(f"{value}: {outcome(trial, objective)}" for value, trial in others.items())
        given = "as it was" if own in ("", 0) else own
        yield f"{title} {given}: {outcome(chosen, objective)}" + (f"; with {shown}" if shown else "")


def differs(share: float, allowed: float = 0.0) -> str:
    if share == math.inf:
        return "some answers have another class, number or text"
    more = f", more than {100 * allowed:g} %" if allowed else ""
    return f"its answers differ by up to {100 * share:.2g} % of the largest number of the output{more}"


def outcome(trial: Trial, objective: Objective) -> str:
    if trial.error:
        return trial.error
    if trial.memory_mb > objective.memory_mb:
        return f"{figure(trial.memory_mb)} MB are too much"
    level = trial.best(objective.target_ms)
    if level is None:
        return f"p99 {figure(min((each.p99 for each in trial.counted), default=math.nan))} ms at best"
    return f"{figure(level.rate)}/s, p99 {figure(level.p99)} ms"
