"""The search of `trident tune`: the space that a model and a few measurements leave, and its successive halving.

A candidate is a way to run the model. Its figure is the most requests/s with which the percentile stays within the
target. A sweep finds it roughly, by doubling the requests under way; races between the best of the sweeps decide: their
servers run at the same time and are asked in turns, so that what else the machine does hits all alike, and the worse
half leaves again and again. First come engines (backend, instances, threads) with the batching that the model has, then
batching with the best of them.
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
from trident.app.bench.measure import Level, ServerTimes, measure, pooled
from trident.app.bench.measure import number as figure
from trident.app.bench.requests import Inputs, Way, make_target
from trident.app.bench.server import Server, started
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import ServerError

_ONNX, _OPENVINO = "onnxruntime", "openvino"
_THREADS = {_ONNX: "intra_op_thread_count", _OPENVINO: "INFERENCE_NUM_THREADS"}
_BATCHES = (1, 4, 16, 64)
# An item of a large batch that costs more than this share of a single one is not worth batching.
_BATCH_GAIN = 0.85
# Below this, threads cost more than they give.
_SHORT_MS = 0.2
_MOST_CONCURRENCY = 256
_GAIN = 1.03
_REQUESTS = 30
_MOST_LIVE = 6
_SHORTEST_S, _LONGEST_S = 0.12, 1.5
# Shares of the time at which the engines have been swept and raced, and the batchings. The last race has the rest.
_ENGINES, _ENGINE_RACE, _BATCHINGS, _BATCHING_RACE = 0.4, 0.5, 0.7, 0.8
# A sweep has about so many levels, and the start of a server takes about so long.
_LEVELS, _START_S = 4, 0.5
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the model. 0 and "" leave a setting as it is; `batch` -1 means one request at a time."""

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
        level = trial.best(self.target_ms, self.percentile)
        if level is None:
            return (-min(each.percentiles[str(self.percentile)] for each in trial.counted), 0, 0)
        used = -float(max(1, trial.candidate.instances) * max(1, trial.candidate.threads))
        # A fifth in reserve: traffic is not even.
        if self.rate and level.rate >= 1.2 * self.rate:
            return (1.2 * self.rate, used, -level.percentiles[str(self.percentile)])
        return (level.rate, used, 0)


# --- the space


def engines(config: ModelConfig, folder: Path, cores: int, times: ServerTimes | None = None) -> list[Candidate]:
    """Backend, instances and threads, on CPUs. `times` are of single requests; without them threads are tried too."""
    mean_ms = times.compute_infer if times is not None else math.inf
    own = config.backend or (_ONNX if config.platform in ("", "onnxruntime_onnx") else "")
    backends = [own]
    if own == _ONNX and importlib.util.find_spec(_OPENVINO) and any(folder.glob("*/model.onnx")):
        backends.append(_OPENVINO)
    counts = _powers(cores)
    found = []
    for backend, instances, threads in product(backends, counts, counts):
        if backend not in _THREADS:
            threads = 0
        elif (mean_ms < _SHORT_MS and threads > 1) or instances * threads > 2 * cores:
            continue
        candidate = Candidate(backend, instances, threads)
        if candidate not in found:
            found.append(candidate)
    return found


def _powers(highest: int) -> list[int]:
    return sorted({*(1 << bit for bit in range(highest.bit_length()) if 1 << bit <= highest), highest})


def batchings(config: ModelConfig, times: ServerTimes | None, target_ms: float) -> list[tuple[int, int]]:
    """Batch sizes with their delays in microseconds, in this order. `times` are of a load that made batches."""
    if config.max_batch_size <= 0 or config.HasField("sequence_batching"):
        return []
    item_ms, large_ms = _item_costs(times)
    if large_ms > _BATCH_GAIN * item_ms:
        return [(size, 0) for size in _BATCHES[:2]]
    # A batch must be done in the half of the target: a request may have to wait for another batch before.
    sizes = [size for size in _BATCHES if not large_ms or size * large_ms <= target_ms / 2] or [1]
    delay_us = round(target_ms * 100)
    return [*((size, 0) for size in sizes), *((size, delay_us) for size in sizes[-1:] if size > 1)]


def _item_costs(times: ServerTimes | None) -> tuple[float, float]:
    """The cost of an item in the smallest and in the largest batch that was common; zeros if there were no batches."""
    if times is None or not times.costs:
        return 0.0, 0.0
    enough = 0.02 * sum(times.batches.values())
    sizes = sorted((size for size, count in times.batches.items() if count >= enough), key=int)
    if int(sizes[-1]) == 1:
        return 0.0, 0.0
    return times.costs[sizes[0]] / int(sizes[0]), times.costs[sizes[-1]] / int(sizes[-1])


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
        self._turns: dict[tuple[Candidate, int], list[Level]] = {}
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
        """Double the requests under way while that gains and the target holds. KeyboardInterrupt after Ctrl-C.

        From `start`, a load that suits a similar way, one level without a gain is enough; if the first is too slow, the
        load is halved until it is not.
        """
        trial = self.trials.setdefault(candidate, Trial(candidate))
        try:
            server, _ = self.server(candidate)
            last = self.run(candidate, start or 1, _SHORTEST_S)
        except ServerError as error:
            trial.error = error.message.splitlines()[-1].rpartition('] "')[2][:200]
            return trial
        target, name = self.objective.target_ms, str(self.objective.percentile)
        levels: list[Level] = []
        concurrency, patience = start or 1, 1 if start else 2
        while concurrency <= _MOST_CONCURRENCY:
            levels.append(self.run(candidate, concurrency, _long_enough(seconds, concurrency, last)))
            last, newest = levels[-1], levels[-patience:]
            earlier = max((each.rate for each in levels[:-patience]), default=0.0)
            is_over = all(each.percentiles[name] > target or each.rate < _GAIN * earlier for each in newest)
            if len(newest) == patience and is_over:
                break
            concurrency *= 2
        while start > 1 and all(each.percentiles[name] > target for each in levels):
            start //= 2
            levels.insert(0, self.run(candidate, start, _long_enough(seconds, start, last)))
        trial.levels = levels
        trial.memory_mb = server.memory_mb()
        self._most_live = max(
            1, min(_MOST_LIVE, int(_available_mb() / 2 / max(1.0, trial.memory_mb)) + len(self._live))
        )
        return trial

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

    def race(self, candidates: Iterable[Candidate], until: float, keep: int) -> list[Candidate]:
        """Ask the candidates in turns, and let the worse half go, until `keep` are left, the best first."""
        left = [trial.candidate for trial in self.ranked(candidates) if not trial.error]
        began = time.monotonic()
        stages = max(1, math.ceil(math.log2(max(keep, len(left)) / keep)))
        turn_s = max(_SHORTEST_S, min(_LONGEST_S, (until - began) / stages / _ROUNDS / max(1, len(left))))
        for stage in range(1, stages + 1):
            end, took = began + (until - began) * stage / stages, 0.0
            loads = [(candidate, *load) for candidate in left for load in self._close_loads(self.trials[candidate])]
            while loads and (not took or time.monotonic() + took / 2 < end):
                at = time.monotonic()
                for candidate, load, near in loads:
                    level = self.run(candidate, load, _long_enough(turn_s, load, near))
                    self._turns.setdefault((candidate, load), []).append(level)
                loads.reverse()
                took = time.monotonic() - at
            for candidate in left:
                turns = [turns for (each, _), turns in self._turns.items() if each == candidate]
                self.trials[candidate].raced = [pooled(each) for each in turns]
            left = [trial.candidate for trial in self.ranked(left)][: max(keep, math.ceil(len(left) / 2))]
        return left

    def _close_loads(self, trial: Trial) -> list[tuple[int, Level]]:
        """The loads among which a candidate's best may be, as noise may hide it, each with a level near it."""
        target, name = self.objective.target_ms, str(self.objective.percentile)
        best = trial.best(target, self.objective.percentile)
        if best is None:
            best = min(trial.counted, key=lambda level: level.percentiles[name])
        found = [(best.concurrency, best)]
        if best.concurrency > 1 and best.percentiles[name] > 0.7 * target:
            found.append((best.concurrency // 2, best))
        for level in trial.levels:
            is_next = level.concurrency == 2 * best.concurrency and level.rate > best.rate
            if is_next and level.percentiles[name] < 1.5 * target:
                found.append((level.concurrency, level))
        return found


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
    config, objective = bench.config, bench.objective
    space = engines(config, bench.folder, cores, before.levels[0].server)
    busiest = max((each.server for each in before.levels if each.server), key=lambda times: times.batch, default=None)
    options = batchings(config, busiest, objective.target_ms)
    best = before.best(objective.target_ms, objective.percentile)
    start = best.concurrency if best is not None else 1
    sweeps = len(space) + len(options) + 2
    unit = ((_ENGINES + _BATCHINGS - _ENGINE_RACE) * seconds / sweeps - _START_S) / _LEVELS
    unit = max(_SHORTEST_S, min(_LONGEST_S, unit))

    def sweep(candidates: Iterable[Candidate], share: float) -> list[Candidate]:
        done = []
        for candidate in candidates:
            if time.monotonic() < began + share * seconds:
                bench.sweep(candidate, unit, start)
                done.append(candidate)
        return done

    def race(candidates: Iterable[Candidate], entrants: int, share: float, keep: int) -> list[Candidate]:
        best = [trial.candidate for trial in bench.ranked(candidates)[:entrants]]
        return bench.race(best, began + share * seconds, keep)

    own = [each for each in space if each.backend == space[0].backend]
    done = sweep(own, _ENGINES)
    # The instances and threads that suit one backend are tried with the other.
    shapes = [(trial.candidate.instances, trial.candidate.threads) for trial in bench.ranked(done)[:2]]
    others = [each for each in space if each not in own and (each.instances, each.threads) in shapes]
    kept = race([*done, *sweep(others, _ENGINE_RACE)], 3, _ENGINE_RACE, 2) or [AS_IT_IS]
    batched: list[Candidate] = []
    for size, delay_us in sorted(options, key=lambda each: each[0] == 1):
        largest = max((_most_kept(bench.trials[each], objective) for each in batched), default=math.inf)
        # Fewer requests under way than the last size had room for: a larger one, or a delay, changes nothing.
        if not batched or size == 1 or largest > batched[-1].batch:
            batched += sweep([replace(kept[0], batch=size, delay_us=delay_us)], _BATCHINGS)
    best_batch = race([*batched, kept[0]], 3, _BATCHING_RACE, 1)[0]
    if best_batch.batch:
        sweep(
            (replace(each, batch=best_batch.batch, delay_us=best_batch.delay_us) for each in kept[1:]), _BATCHING_RACE
        )
    bench.race({AS_IT_IS, *(trial.candidate for trial in bench.ranked()[:3])}, began + seconds, 1)


def _most_kept(trial: Trial, objective: Objective) -> int:
    """The most requests under way with which the target was kept."""
    name = str(objective.percentile)
    return max((each.concurrency for each in trial.levels if each.percentiles[name] <= objective.target_ms), default=0)


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
