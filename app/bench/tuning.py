"""The search of `trident tune`: the space that a model and a few measurements leave, and its successive halving.

A candidate is a way to run the model. Its figure is the most requests/s with which the percentile stays within the
target, found by doubling the requests under way. First each engine (backend, instances, threads) is measured with the
batching that the model has, then the best of them with other batching, each time longer and for fewer.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from google.protobuf import text_format

from trident.app.bench.client import LoadClient
from trident.app.bench.measure import Level, ServerTimes, measure
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
_SHORTEST_S, _LONGEST_S = 0.15, 1.5


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


@dataclass(slots=True)
class Trial:
    """What was measured of a candidate. `levels` are those of its last measurement, `memory_mb` of its processes."""

    candidate: Candidate
    levels: list[Level] = field(default_factory=list)
    memory_mb: float = 0.0
    error: str = ""

    def best(self, target_ms: float, percentile: int) -> Level | None:
        """The level with the most requests/s within the target."""
        kept = [each for each in self.levels if each.requests and each.percentiles[str(percentile)] <= target_ms]
        return max(kept, key=lambda level: level.rate, default=None)


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
        if trial.error or not trial.levels or trial.memory_mb > self.memory_mb:
            return (-math.inf, 0, 0)
        level = trial.best(self.target_ms, self.percentile)
        if level is None:
            return (-min(each.percentiles[str(self.percentile)] for each in trial.levels), 0, 0)
        used = -float(max(1, trial.candidate.instances) * max(1, trial.candidate.threads))
        # A fifth in reserve: traffic is not even.
        if self.rate and level.rate >= 1.2 * self.rate:
            return (1.2 * self.rate, used, -level.percentiles[str(self.percentile)])
        return (level.rate, used, 0)


# --- the space


def engines(config: ModelConfig, folder: Path, cores: int, mean_ms: float) -> list[Candidate]:
    """Backend, instances and threads, on CPUs. A model whose execution takes `mean_ms` may be too short for threads."""
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
    """Batch sizes with their delays in microseconds, other than none. `times` are of a load that made batches."""
    if config.max_batch_size <= 0 or config.HasField("sequence_batching"):
        return []
    item_ms, large_ms = _item_costs(times)
    if item_ms and large_ms > _BATCH_GAIN * item_ms:
        return [(size, 0) for size in _BATCHES[:2]]
    # A batch must be done in the half of the target: a request may have to wait for another batch before.
    sizes = [size for size in _BATCHES if not large_ms or size * large_ms <= target_ms / 2] or [1]
    delay_us = round(target_ms * 100)
    return [*((size, 0) for size in sizes), *((size, delay_us) for size in sizes[-1:] if size > 1)]


def _item_costs(times: ServerTimes | None) -> tuple[float, float]:
    """The cost of an item in the smallest and in the largest batch that was common; zeros if there were none."""
    if times is None or not times.costs:
        return 0.0, 0.0
    enough = 0.02 * sum(times.batches.values())
    sizes = sorted((size for size, count in times.batches.items() if count >= enough), key=int)
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
        self._most_live = _MOST_LIVE

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for candidate in list(self._live):
            self.stop(candidate)

    def stop(self, candidate: Candidate) -> None:
        if candidate in self._live:
            self._live.pop(candidate)[0].close()

    def server(self, candidate: Candidate) -> tuple[Server, LoadClient]:
        """The candidate's, started if it does not run. Raises ServerError if the model cannot be loaded so."""
        if candidate not in self._live:
            while len(self._live) >= self._most_live:
                self.stop(next(iter(self._live)))
            self._tell(f"starting {candidate.text}")
            with ExitStack() as stack:
                root = stack.enter_context(tempfile.TemporaryDirectory(prefix="trident-tune-"))
                copy_model(self.folder, Path(root, self.model), candidate.apply(self.config))
                server = stack.enter_context(started(root, self.model, protocols=(self._way.protocol,)))
                spec = server.spec(self.model, "")
                target = make_target(spec, self._inputs(spec), server.targets[self._way.protocol], self._way)
                client = stack.enter_context(LoadClient(target))
                self._live[candidate] = (stack.pop_all(), server, client)
        _, server, client = self._live[candidate]
        return server, client

    def measure(self, candidate: Candidate, seconds: float) -> Trial:
        """Double the requests under way while that gains and the target holds. KeyboardInterrupt after Ctrl-C."""
        trial = self.trials.setdefault(candidate, Trial(candidate))
        try:
            server, client = self.server(candidate)
        except ServerError as error:
            trial.error = error.message.splitlines()[-1][:200]
            return trial
        target, percentile = self.objective.target_ms, self.objective.percentile
        before = trial.best(target, percentile)
        concurrency = max(1, before.concurrency // 2) if before is not None else 1
        levels: list[Level] = []
        while concurrency <= _MOST_CONCURRENCY:
            level = self.level(server, client, concurrency, seconds, candidate.text, warm_up=not levels)
            levels.append(level)
            rates = [each.rate for each in levels[-3:]]
            stopped_gaining = len(rates) == 3 and max(rates[1:]) < rates[0] * _GAIN
            # One level above the target may be noise, two are not.
            too_slow = [each.percentiles[str(percentile)] > target for each in levels[-2:]]
            if not level.requests or too_slow == [True, True] or stopped_gaining:
                break
            concurrency *= 2
        trial.levels = levels
        trial.memory_mb = server.memory_mb()
        self._most_live = max(
            1, min(_MOST_LIVE, int(_available_mb() / 2 / max(1.0, trial.memory_mb)) + len(self._live))
        )
        return trial

    def level(
        self, server: Server, client: LoadClient, concurrency: int, seconds: float, name: str, *, warm_up: bool = False
    ) -> Level:
        """One level, long enough for a percentile of a slow model."""
        if warm_up:
            first = self._run(server, client, concurrency, _SHORTEST_S, name)
            seconds = max(seconds, min(10 * seconds, _REQUESTS * first.mean / 1e3 / concurrency))
        return self._run(server, client, concurrency, seconds, name)

    def _run(self, server: Server, client: LoadClient, concurrency: int, seconds: float, name: str) -> Level:
        level = measure(
            client,
            server,
            self.model,
            seconds=seconds,
            concurrency=concurrency,
            percentile=self.objective.percentile,
            tick=lambda: self._tell(f"{name}: {concurrency} under way"),
        )
        if client.interrupted:
            raise KeyboardInterrupt
        return level

    def ranked(self, candidates: Iterable[Candidate] | None = None) -> list[Trial]:
        """The best first."""
        among = set(self.trials if candidates is None else candidates)
        found = [trial for candidate, trial in self.trials.items() if candidate in among]
        return sorted(found, key=self.objective.value, reverse=True)

    def halve(self, candidates: Sequence[Candidate], seconds: float, keep: int, deadline: float) -> list[Candidate]:
        """Measure each, and keep the best; the servers of the others end."""
        for candidate in candidates:
            if time.monotonic() < deadline:
                self.measure(candidate, seconds)
        ranked = [trial.candidate for trial in self.ranked(candidates) if not trial.error]
        for candidate in list(self._live):
            if candidate not in ranked[:keep]:
                self.stop(candidate)
        return ranked[:keep]


def search(bench: Bench, cores: int, seconds: float) -> None:
    """Measure what `seconds` allow; the trials are in `bench`, also after KeyboardInterrupt."""
    deadline = time.monotonic() + seconds
    # The model as it is comes first, with what the space follows from.
    before = bench.measure(Candidate(), _SHORTEST_S * 2)
    if before.error:
        return
    config = bench.config
    busiest = max(
        (level.server for level in before.levels if level.server), key=lambda times: times.batch, default=None
    )
    first = before.levels[0].server
    space = engines(config, bench.folder, cores, first.compute_infer if first is not None else math.inf)
    options = batchings(config, busiest, bench.objective.target_ms)
    # About how many levels the rounds have, at five for a first measurement and three for another one.
    levels = 5 * len(space) + 3 * 5 * len(options) + 9
    left = deadline - time.monotonic() - 1.5 * (len(space) + 3 * len(options))
    unit = min(_LONGEST_S, max(_SHORTEST_S, left / levels))
    kept = bench.halve(space, unit, 3, deadline)
    if options:
        kept = _with_batching(bench, kept, options, unit, deadline)
    bench.halve(kept, 2 * unit, 2, deadline)


def _with_batching(
    bench: Bench, kept: Sequence[Candidate], options: Sequence[tuple[int, int]], unit: float, deadline: float
) -> list[Candidate]:
    """All batchings with the best engine, then the best of them with the others."""
    if not kept:
        return []
    tried = [replace(kept[0], batch=size, delay_us=delay) for size, delay in options]
    best = bench.halve([*tried, kept[0]], unit, 2, deadline)
    others = [replace(engine, batch=each.batch, delay_us=each.delay_us) for engine in kept[1:] for each in best[:1]]
    return bench.halve([*best, *others], 1.5 * unit, 3, deadline)


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
        lowest = min((each.percentiles[str(objective.percentile)] for each in trial.levels), default=math.nan)
        return f"{name} {figure(lowest)} ms at best"
    return f"{figure(level.rate)}/s, {name} {figure(level.percentiles[str(objective.percentile)])} ms"
