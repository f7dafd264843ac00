"""The search of `trident tune`: the space that a model and a few measurements leave, and its races.

A candidate is a way to run the model. Its figure is the most requests/s with which the percentile stays within the
target. A sweep finds it roughly, by doubling the requests under way. A race between the best of the sweeps and the
model as it is decides: their servers run at the same time and are asked in turns, so that what else the machine does
hits all alike. The last two and the model as it is are compared turn by turn, and a way that is not shown to be better
than the model as it is loses to it.
"""

from __future__ import annotations

import importlib.util
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
from itertools import product
from pathlib import Path

from google.protobuf import text_format

from trident.app.bench.client import LoadClient
from trident.app.bench.measure import Difference, Level, ServerTimes, differences, measure, pooled
from trident.app.bench.measure import number as figure
from trident.app.bench.requests import Inputs, Way, make_target
from trident.app.bench.server import Server, started
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import ServerError

_ONNX, _OPENVINO = "onnxruntime", "openvino"
_THREADS = {_ONNX: "intra_op_thread_count", _OPENVINO: "INFERENCE_NUM_THREADS"}
_BATCHES = (16, 64)
# A single execution below the first takes longer with threads; one above the second leaves little to HTTP, so that ways
# which leave half of the cores to it are no use.
_SHORT_MS, _LONG_MS = 0.2, 1.0
_MOST_CONCURRENCY = 256
_GAIN, _ALIKE = 1.03, 0.95
_REQUESTS = 30
_MOST_LIVE = 6
_SHORTEST_S, _LONGEST_S = 0.1, 1.5
# Shares of the time at which the ways have been swept, and raced. The last comparison has the rest.
_SWEPT, _RACED = 0.55, 0.75
# A sweep has about so many levels, and the start of a server takes about so long.
_LEVELS, _START_S = 3, 0.8
_ENTRANTS, _RACE_ROUNDS, _LAST_ROUNDS = 4, 3, 12
# The interval of fewer rounds is too narrow: noise would pass for a gain.
_LEAST_ROUNDS = 6
_ROUGH = 90


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the model. 0 and "" leave a setting as it is."""

    backend: str = ""
    instances: int = 0
    threads: int = 0
    batch: int = 0
    delay_us: int = 0

    @property
    def text(self) -> str:
        parts = [self.backend] if self.backend else []
        parts += [f"{self.instances} instances"] * bool(self.instances) + [f"{self.threads} threads"] * bool(
            self.threads
        )
        parts += [f"batches of {self.batch}"] * (self.batch > 0)
        parts += [f"delay {self.delay_us} us"] * bool(self.delay_us)
        return ", ".join(parts) or "as it is"

    def apply(self, config: ModelConfig) -> ModelConfig:
        """The configuration with these settings."""
        made = ModelConfig()
        made.CopyFrom(config)
        if self.backend and self.backend != config.backend:
            if self.backend == _OPENVINO and not made.default_model_filename:
                made.default_model_filename = "model.onnx"
            made.platform, made.backend = "", self.backend
        if self.instances:
            groups = made.instance_group or [made.instance_group.add(kind=ModelConfig().instance_group.add().KIND_CPU)]
            groups[0].count = self.instances
        if self.threads:
            for name in _THREADS.values():
                made.parameters.pop(name, None)
            made.parameters[_THREADS[made.backend or _ONNX]].string_value = str(self.threads)
        if self.batch > 0:
            made.max_batch_size = self.batch
            made.dynamic_batching.SetInParent()
            made.dynamic_batching.ClearField("preferred_batch_size")
            made.dynamic_batching.max_queue_delay_microseconds = self.delay_us
        return made


AS_IT_IS = Candidate()


@dataclass(slots=True)
class Trial:
    """What was measured of a candidate: the levels of its sweep, and those of its turns in races, which count more.
    `memory_mb` is that of its processes."""

    candidate: Candidate
    levels: list[Level] = field(default_factory=list)
    raced: list[Level] = field(default_factory=list)
    memory_mb: float = 0.0
    error: str = ""

    def best(self, target_ms: float, percentile: int) -> Level | None:
        """The level with the most requests/s within the target."""
        kept = [each for each in self.counted if each.requests and each.percentiles[str(percentile)] <= target_ms]
        return max(kept, key=lambda level: level.rate, default=None)

    @property
    def counted(self) -> list[Level]:
        return self.raced or self.levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`percentile` of the latency within `target_ms`; `rate` is the traffic that is enough, 0 for as much as possible.
    `memory_mb` bounds the processes of a server."""

    target_ms: float
    percentile: int = 99
    rate: float = 0.0
    memory_mb: float = math.inf

    def value(self, trial: Trial) -> tuple[float, float, float]:
        """Larger is better.

        What cannot meet the target is compared by how far it is off; what has enough, by how little it takes.
        """
        if trial.error or not trial.counted or trial.memory_mb > self.memory_mb:
            return (-math.inf, 0, 0)
        # One short level has too few requests for a higher percentile: a single pause would rule out a good way.
        percentile = self.percentile if trial.raced else min(self.percentile, _ROUGH)
        level = trial.best(self.target_ms, percentile)
        if level is None:
            return (-min(each.percentiles[str(percentile)] for each in trial.counted), 0, 0)
        used = -float(max(1, trial.candidate.instances) * max(1, trial.candidate.threads))
        # A fifth in reserve: traffic is not even.
        if self.rate and level.rate >= 1.2 * self.rate:
            return (1.2 * self.rate, used, -level.percentiles[str(self.percentile)])
        return (level.rate, used, 0)


# --- the space


def engines(config: ModelConfig, folder: Path, cores: int, times: ServerTimes | None) -> list[Candidate]:
    """Backend, instances and threads on CPUs, the likeliest first. `times` are of single requests."""
    mean_ms = times.compute_infer if times is not None else math.inf
    own = config.backend or (_ONNX if config.platform in ("", "onnxruntime_onnx") else "")
    counts = sorted({*(1 << bit for bit in range(cores.bit_length()) if 1 << bit <= cores), cores})
    if own not in _THREADS:
        return [Candidate(own, instances) for instances in counts]
    backends = [own]
    if own == _ONNX and importlib.util.find_spec(_OPENVINO) and any(folder.glob("*/model.onnx")):
        backends.append(_OPENVINO)
    shapes = [(count, threads) for count, threads in product(counts[::-1], counts[::-1]) if count * threads <= cores]
    if mean_ms < _SHORT_MS:
        shapes = [shape for shape in shapes if shape[1] == 1]
    elif mean_ms > _LONG_MS:
        shapes = [shape for shape in shapes if shape[0] * shape[1] > cores / 2]
    return [Candidate(backend, *shape) for shape, backend in product(shapes, backends)]


def batchings(config: ModelConfig) -> list[int]:
    """Batch sizes that are worth a trial. No smaller ones than the model has, because they would refuse requests that
    it accepts now, and a batch is never larger than what waits."""
    if config.max_batch_size <= 0 or config.HasField("sequence_batching"):
        return []
    own = config.max_batch_size
    sizes = sorted({max(own, size) for size in _BATCHES})
    return [size for size in sizes if size > own or not config.HasField("dynamic_batching")]


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
        way: Way,
        tell: Callable[[str], None],
    ) -> None:
        self.model, self.folder, self.config = model, folder, config
        self.objective, self._inputs, self._way, self._tell = objective, inputs, way, tell
        self.trials: dict[Candidate, Trial] = {}
        self._live: dict[Candidate, tuple[ExitStack, Server, LoadClient]] = {}
        self.turns: dict[tuple[Candidate, int], list[Level]] = {}
        self._ending = ThreadPoolExecutor(1)
        self._most_live = _MOST_LIVE

    def __enter__(self) -> Bench:
        multiprocessing.set_forkserver_preload(["trident.app.bench.preload"])
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

    def sweep(self, candidate: Candidate, seconds: float, start: int = 0) -> Trial:
        """Double the requests under way while that gains and leaves room. KeyboardInterrupt after Ctrl-C.

        From `start`, a load that suits a similar way, one level without a gain is enough; if the first is too slow, the
        load is halved until it is not.
        """
        trial = self.trials.setdefault(candidate, Trial(candidate))
        try:
            server, _ = self.server(candidate)
            last = self.run(candidate, start or 1, _SHORTEST_S / 2)
        except ServerError as error:
            trial.error = error.message.splitlines()[-1].rpartition('] "')[2][:200]
            return trial
        levels = trial.levels = []
        concurrency, patience = start or 1, 1 if start else 2
        while concurrency <= _MOST_CONCURRENCY:
            last = self.run(candidate, concurrency, _long_enough(seconds, concurrency, last))
            levels.append(last)
            earlier = max((each.rate for each in levels[:-patience]), default=0.0)
            # The median, which a pause does not move. With twice the requests it would be twice as long.
            if self._has_no_room(last) or max(each.rate for each in levels[-patience:]) < _GAIN * earlier:
                break
            concurrency *= 2
        while start > 1 and self._has_no_room(levels[0]):
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
        """One level."""
        server, client = self.server(candidate)
        level = measure(
            client,
            server,
            self.model,
            seconds=seconds,
            concurrency=concurrency,
            percentile=self.objective.percentile,
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

    def race(self, candidates: Sequence[Candidate], until: float, rounds: int, *, closely: bool = False) -> None:
        """Ask the candidates in turns, in about so many rounds: each at the loads among which its best may be, or only
        at its best one."""
        loads = []
        for candidate in candidates:
            trial = self.trials[candidate]
            loads += [
                (candidate, *load) for load in (self._close_loads(trial) if closely else [self._best_load(trial)])
            ]
            self.server(candidate)
        seconds = max(_SHORTEST_S, min(_LONGEST_S, (until - time.monotonic()) / rounds / len(loads)))
        took = 0.0
        while not took or time.monotonic() + took / 2 < until:
            began = time.monotonic()
            for candidate, load, near in loads:
                level = self.run(candidate, load, _long_enough(seconds, load, near))
                self.turns.setdefault((candidate, load), []).append(level)
                turns = [turns for (each, _), turns in self.turns.items() if each == candidate]
                self.trials[candidate].raced = [pooled(each) for each in turns]
            loads.reverse()
            took = time.monotonic() - began

    def _close_loads(self, trial: Trial) -> list[tuple[int, Level]]:
        """The loads among which a candidate's best may be, as noise may hide it, each with a level near it."""
        name, target = str(self.objective.percentile), self.objective.target_ms
        near = {each.concurrency: each for each in trial.levels if each.percentiles[name] <= 1.5 * target}
        best = max(near.values(), key=lambda level: level.rate, default=trial.levels[0])
        loads = [best.concurrency]
        if best.concurrency > 1 and best.percentiles[name] > 0.7 * target:
            loads.append(best.concurrency // 2)
        if not self._has_no_room(best) and (best is trial.levels[-1] or 2 * best.concurrency in near):
            loads.append(2 * best.concurrency)
        return [(load, best) for load in loads]

    def _best_load(self, trial: Trial) -> tuple[int, Level]:
        name = str(self.objective.percentile)
        best = trial.best(self.objective.target_ms, self.objective.percentile)
        best = best or min(trial.counted, key=lambda level: level.percentiles[name])
        return best.concurrency, best

    def gained(self, before: Candidate, after: Candidate) -> list[Difference]:
        """What a way is over another one, in the rounds that they had together; empty if those are too few."""
        sides = []
        for candidate in (before, after):
            turns = [turns for (each, _), turns in self.turns.items() if each == candidate]
            sides.append(max(turns, key=len, default=[]))
        count = min(map(len, sides))
        first, second = (side[len(side) - count :] for side in sides)
        if before == after or count < _LEAST_ROUNDS or not all(level.requests for level in (*first, *second)):
            return []
        return differences(first, second, paired=True)

    def chosen(self) -> Trial:
        """The best way that is shown to be better than the model as it is, otherwise that. Where a rate is enough,
        fewer resources are the aim, and no more is to be shown."""
        objective, before = self.objective, self.trials[AS_IT_IS]
        kept = before.best(objective.target_ms, objective.percentile)
        for trial in self.ranked():
            if trial is before or objective.value(trial) <= objective.value(before):
                break
            if objective.rate and trial.raced:
                return trial
            found = {each.what: each for each in self.gained(AS_IT_IS, trial.candidate)}
            if found and found["requests/s" if kept else "p99"].verdict == "better":
                return trial
        return before


def _long_enough(seconds: float, concurrency: int, near: Level) -> float:
    """For a percentile of a slow model, and for the requests under way to be exchanged some times, at the pace of the
    level `near`."""
    each_s = near.mean / 1e3 / near.concurrency
    return max(seconds, min(8 * seconds, (_REQUESTS + 3 * concurrency) * each_s))


def search(bench: Bench, cores: int, seconds: float) -> None:
    """Measure what `seconds` allow; the trials are in `bench`, also after KeyboardInterrupt."""
    began = time.monotonic()
    # The model as it is comes first, with what the space follows from.
    before = bench.sweep(AS_IT_IS, _SHORTEST_S)
    if before.error:
        return
    space = engines(bench.config, bench.folder, cores, before.levels[0].server)
    sizes = batchings(bench.config)
    start = max(before.levels, key=lambda level: level.rate).concurrency
    unit = (_SWEPT * seconds / (len(space) + len(sizes) + 2) - _START_S) / _LEVELS
    unit = max(_SHORTEST_S, min(_LONGEST_S, unit))
    refused: set[str] = set()

    def sweep(candidate: Candidate) -> None:
        is_known = candidate in bench.trials or candidate.backend in refused
        if not is_known and time.monotonic() < began + _SWEPT * seconds and bench.sweep(candidate, unit, start).error:
            refused.add(candidate.backend)

    # Whether batches pay is asked first, because all engines are then tried with them, or without.
    batch = 0
    for size in sizes[:1]:
        sweep(Candidate(batch=size))
        batched = bench.trials.get(Candidate(batch=size))  # None if the time is over
        if batched and bench.objective.value(batched)[0] > _ALIKE * bench.objective.value(before)[0]:
            batch = size
    space = [replace(each, batch=batch) for each in space]
    # The backend that is faster in one shape is so in most, which are tried with the other if there is time at the end.
    first = [each for each in space if (each.instances, each.threads) == (space[0].instances, space[0].threads)]
    for candidate in first:
        sweep(candidate)
    backend = next((trial.candidate.backend for trial in bench.ranked(first)), "")
    for candidate in space:
        if candidate.backend == backend:
            sweep(candidate)
    for trial in bench.ranked()[:2] if sizes else []:
        sweep(replace(trial.candidate, batch=0 if batch else sizes[0]))
    best = bench.ranked()[0].candidate
    if best.batch:
        for size in sizes[1:]:
            sweep(replace(best, batch=size))
        sweep(replace(best, delay_us=round(100 * bench.objective.target_ms)))
    for candidate in space:
        sweep(candidate)
    others = [trial.candidate for trial in bench.ranked() if trial is not before and not trial.error]
    others = others[:_ENTRANTS]
    if not others:
        return
    bench.race([AS_IT_IS, *others], began + _RACED * seconds, _RACE_ROUNDS, closely=True)
    last = [trial.candidate for trial in bench.ranked(others)[:2]]
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


# --- what it says


def reasons(bench: Bench, chosen: Trial) -> Iterator[str]:
    """For each setting of the chosen candidate: what it reached, and what the best with another value did."""
    objective = bench.objective
    for name, title in (
        ("backend", "backend"),
        ("instances", "instance_group count"),
        ("threads", "threads of an execution"),
        ("batch", "max_batch_size"),
        ("delay_us", "max_queue_delay_microseconds"),
    ):
        own = getattr(chosen.candidate, name)
        others: dict[object, Trial] = {}
        for trial in bench.ranked():
            value = getattr(trial.candidate, name)
            if value != own and value not in ("", 0) and not trial.error:
                others.setdefault(value, trial)
        if own in ("", 0) and not others:
            continue
        shown = "; ".join(f"{value}: {outcome(trial, objective)}" for value, trial in others.items())
        given = "as it was" if own in ("", 0) else own
        yield f"{title} {given}: {outcome(chosen, objective)}" + (f"; the best with {shown}" if shown else "")


def outcome(trial: Trial, objective: Objective) -> str:
    if trial.error:
        return trial.error
    level = trial.best(objective.target_ms, objective.percentile)
    name = f"p{objective.percentile}"
    if level is None:
        lowest = min((each.percentiles[str(objective.percentile)] for each in trial.counted), default=math.nan)
        return f"{name} {figure(lowest)} ms at best"
    return f"{figure(level.rate)}/s, {name} {figure(level.percentiles[str(objective.percentile)])} ms"
