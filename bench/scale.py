"""The effect of each scaling rule on the slowest requests and on the cost, in a simulation of servers under bursts.

    python -m bench scale            the simulation: some seconds
    python -m bench scale --check    and beside it three real servers behind nginx, whose answers it has to predict
    python -m bench scale --check --page    also writes the figures and the picture into docs/scale.md

A replica answers one request after the other, as a model with one instance does. Every 15 seconds the rule reads its
metric as Prometheus has it, and the autoscaler computes ceil(replicas * metric / target) within its tolerance, as KEDA
and Kubernetes do: at once upwards, at most doubling or by four, and after five quiet minutes downwards, one a minute.
A new replica serves when it has loaded its models. A request that would wait longer than its queue's timeout is
refused. The rules and their targets are those of deploy/helm/trident.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import subprocess
import tempfile
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.clients import answered, target_of
from bench.pictures import picture
from bench.results import table
from bench.servers.server import JSON_HEADERS
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.waiting import until
from trident.tools.bench.client import LoadClient
from trident.tools.bench.page import Point, lines

PAGE = ROOT / "docs" / "scale.md"
PICTURE = ROOT / "docs" / "pictures" / "scale.svg"
SERVICE_S = 0.050
_MINUTE = 60.0
_POLL_S, _WINDOW_S, _START_S, _QUIET_S = 15.0, 60.0, 45.0, 300.0
_TOLERANCE = 0.1
_PATIENCE_S = 2.0
_LEAST, _MOST = 2, 10
_HOUR = 3600.0
# Requests a second that the load never exceeds.
_PEAK = 160.0


def load_at(time_s: float) -> float:
    """Requests a second: a calm base, a slow rise and fall, and three bursts within seconds."""
    rate = 24.0 + 36.0 * max(0.0, math.sin(math.pi * (time_s - 15 * _MINUTE) / (15 * _MINUTE)))
    for start, length, height in ((6, 3, 80.0), (36, 2, 128.0), (46, 6, 72.0)):
        if start * _MINUTE <= time_s < (start + length) * _MINUTE:
            rate += height
    return rate


def arrivals(rate: Callable[[float], float] | None, until_s: float, peak: float, seed: int = 1) -> Iterator[float]:
    """The times of a Poisson process with the `rate`, which never exceeds `peak`; without one it is `peak`."""
    rng = random.Random(seed)
    now = 0.0
    while (now := now + rng.expovariate(peak)) < until_s:
        if rate is None or rng.random() * peak < rate(now):
            yield now


@dataclass(slots=True)
class Fleet:
    """Replicas by the time at which each is free; `serves_from` is when each has loaded its models."""

    service_s: float
    patience_s: float
    free_at: list[float]
    serves_from: list[float]
    turn: int = 0

    def wait(self, now: float) -> float | None:
        """The wait of a request, which goes to the replica whose turn it is, as nginx has it. None if it is refused."""
        ready = self.serving(now)
        self.turn += 1
        chosen = self.turn % ready
        wait = max(0.0, self.free_at[chosen] - now)
        if wait > self.patience_s:
            return None
        self.free_at[chosen] = now + wait + self.service_s
        return wait

    def serving(self, now: float) -> int:
        """The number of replicas that have loaded their models: the first ones."""
        return bisect_right(self.serves_from, now)

    def pending(self, now: float) -> float:
        """Requests in the queues of the replicas that serve, as the gauge of pending requests counts them."""
        return sum(max(0.0, (free - now) / self.service_s - 1) for free in self.free_at[: self.serving(now)])


@dataclass(slots=True)
class Seen:
    """The input of a rule at a poll: `count` replicas, pending requests, and the waits in the last minute."""

    count: int
    pending: float
    waits: Sequence[float]
    service_s: float


@dataclass(frozen=True, slots=True)
class Rule:
    """`metric` over its target is the factor by which the replicas should grow; None never scales."""

    name: str
    metric: Callable[[Seen], float] | None
    replicas: int = _LEAST
    start_s: float = _START_S


def _pending(seen: Seen) -> float:
    return seen.pending / seen.count / 8


RULES = (
    Rule("always 2", None, 2),
    Rule("always 10", None, 10),
    Rule("pending: 8 a replica", _pending),
    Rule("pending, never below 4", _pending, 4),
    Rule("pending, starts in 10 s", _pending, start_s=10.0),
    Rule("queue: 0.05 s", lambda seen: _mean(seen.waits) / 0.05),
    Rule("p99: 0.25 s", lambda seen: (percentile(seen.waits, 0.99) + seen.service_s) / 0.25),
)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class Outcome:
    """`durations` of the answered requests in seconds, and the replicas that were paid for at each poll."""

    durations: list[float] = field(default_factory=list)
    refused: int = 0
    replicas: list[tuple[float, int]] = field(default_factory=list)

    @property
    def replica_hours(self) -> float:
        return sum(count for _, count in self.replicas) * _POLL_S / _HOUR


def simulate(
    rule: Rule, times: Sequence[float], service_s: float = SERVICE_S, patience_s: float = _PATIENCE_S
) -> Outcome:
    """The requests that arrive at `times`, answered by the replicas that the rule asks for."""
    fleet = Fleet(service_s, patience_s, [0.0] * rule.replicas, [0.0] * rule.replicas)
    outcome = Outcome()
    ended: deque[tuple[float, float]] = deque()
    scaler = Autoscaler(rule.replicas)
    poll = 0.0
    for now in times:
        while poll <= now:
            count = len(fleet.free_at)
            outcome.replicas.append((poll, count))
            while ended and ended[0][0] < poll - _WINDOW_S:
                ended.popleft()
            if rule.metric is not None:
                seen = Seen(count, fleet.pending(poll), [wait for end, wait in ended if end <= poll], service_s)
                wish = scaler.replicas(poll, count, rule.metric(seen))
                fleet.free_at += [poll] * (wish - count)
                fleet.serves_from += [poll + rule.start_s] * (wish - count)
                del fleet.free_at[wish:], fleet.serves_from[wish:]
            poll += _POLL_S
        wait = fleet.wait(now)
        if wait is None:
            outcome.refused += 1
        else:
            outcome.durations.append(wait + service_s)
            ended.append((now + wait + service_s, wait))
    return outcome


@dataclass(slots=True)
class Autoscaler:
    """Kubernetes' one, with the behavior of deploy/kubernetes/parts/keda."""

    least: int
    wishes: list[tuple[float, int]] = field(default_factory=list)
    last_removal: float = -_MINUTE

    def replicas(self, now: float, count: int, ratio: float) -> int:
        """The number of replicas from now on; `ratio` is that of the metric to its target."""
        wish = count if abs(ratio - 1) <= _TOLERANCE else math.ceil(count * ratio)
        wish = min(max(wish, self.least), _MOST)
        self.wishes = [each for each in self.wishes if each[0] > now - _QUIET_S] + [(now, wish)]
        if wish > count:
            return min(wish, max(2 * count, count + 4))
        # Downwards only as far as the largest wish of the last five minutes.
        if max(each for _, each in self.wishes) < count and now - self.last_removal >= _MINUTE:
            self.last_removal = now
            return count - 1
        return count


def comparison() -> tuple[str, dict[str, Outcome]]:
    """The table of the rules, and their outcomes."""
    times = list(arrivals(load_at, _HOUR, peak=_PEAK))
    outcomes = {rule.name: simulate(rule, times) for rule in RULES}
    rows = [
        [
            name,
            *(f"{percentile(each.durations, share) * 1000:,.0f}" for share in (0.5, 0.99)),
            f"{each.refused / len(times):.1%}",
            f"{each.replica_hours:.1f}",
            str(max(count for _, count in each.replicas)),
        ]
        for name, each in outcomes.items()
    ]
    header = ["rule", "p50, ms", "p99, ms", "refused", "replica hours", "most replicas"]
    return table(header, rows), outcomes


# --- the picture


def plot(outcomes: dict[str, Outcome]) -> str:
    """The replicas that the load needs over the hour, and those that two of the rules keep."""
    needed = [Point(at / _MINUTE, load_at(at) * SERVICE_S) for at in range(0, int(_HOUR), 15)]
    kept = [
        (name, [Point(at / _MINUTE, count) for at, count in outcomes[name].replicas])
        for name in ("pending: 8 a replica", "p99: 0.25 s")
    ]
    title = "Replicas that an hour of load needs, and those that two rules keep"
    return lines(title, [*kept, ("needed", needed)], x="minutes", y="replicas")


# --- the real servers


_REPLICAS, _SECONDS = 3, 15.0
_MODEL = f"""import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep({SERVICE_S})
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))]))
        return answers
"""
_CONFIG = """backend: "python"
instance_group [ { kind: KIND_CPU count: 1 } ]
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
_BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'


def check() -> str:
    """Real servers and the simulation with their measured time of service, at three loads, as a table."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        raise SystemExit("nginx is not installed: apt install nginx-light")
    rows = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = folder / "models" / "slow"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_CONFIG)
        (model / "1" / "model.py").write_text(_MODEL)
        servers = [
            stack.enter_context(
                ServerProcess(folder / "models", folder / f"log{n}", "--shutdown-grace-secs=0", "--allow-grpc=false")
            )
            for n in range(_REPLICAS)
        ]
        port = stack.enter_context(_balancer(nginx, folder, servers))
        _send(port, [n / 50 for n in range(32)])
        for share in (0.5, 0.7, 0.85):
            rate = share * _REPLICAS / SERVICE_S
            times = list(arrivals(None, _SECONDS, peak=rate, seed=int(share * 100)))
            before = [_measured(server) for server in servers]
            real = _send(port, times)
            after = [_measured(server) for server in servers]
            count = sum(now[0] - then[0] for then, now in zip(before, after, strict=True))
            service_s = sum(now[1] - then[1] for then, now in zip(before, after, strict=True)) / count / 1e9
            simulated = simulate(Rule("real", None, _REPLICAS), times, service_s, math.inf).durations
            rows.append(
                [
                    f"{share:.0%}",
                    f"{service_s * 1000:.1f}",
                    *(f"{percentile(each, at) * 1000:,.0f}" for at in (0.5, 0.9, 0.99) for each in (real, simulated)),
                ]
            )
    header = ["load", "service, ms", "p50 real", "simulated", "p90 real", "simulated", "p99 real", "simulated"]
    return f"{machine.sentence()}; milliseconds.\n\n{table(header, rows)}"


@contextmanager
def _balancer(nginx: str, folder: Path, servers: Sequence[ServerProcess]) -> Iterator[int]:
    """The port of an nginx that gives each server its turn."""
    (port,) = free_ports(1)
    listed = " ".join(f"server {server.address};" for server in servers)
    temporary = "".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"""daemon off; master_process off; pid nginx.pid; events {{}}
        http {{ access_log off; {temporary} keepalive_requests 1000000;
            upstream replicas {{ {listed} keepalive 64; }}
            server {{ listen {HOST}:{port}; location / {{
                proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}"""
    )
    process = subprocess.Popen([nginx, "-p", str(folder), "-e", "error.log", "-c", "nginx.conf"], cwd=folder)
    try:
        until((folder / "nginx.pid").exists, lambda: (folder / "error.log").read_text())
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _measured(server: ServerProcess) -> tuple[int, int]:
    """Requests that the model has answered, and the nanoseconds that it took for them."""
    seen = server.json("GET", "/v2/models/slow/stats")["model_stats"][0]["inference_stats"]
    return seen["success"]["count"], seen["compute_infer"]["ns"]


def _send(port: int, times: Sequence[float]) -> list[float]:
    """The durations of requests that are sent at `times`, from when each was due."""
    url = f"http://{HOST}:{port}/v2/models/slow/infer"
    with LoadClient(target_of(url, [_BODY], JSON_HEADERS, connections=1)) as client:
        return list(answered(client.run(times[-1], due=times)))


def write_into_page(part: str, text: str) -> None:
    """Replace a measured part of docs/scale.md."""
    before, begin, rest = PAGE.read_text().partition(f"<!-- measured: {part} -->\n")
    PAGE.write_text("".join((before, begin, text, "\n", *rest.partition("<!-- end -->")[1:])))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with three servers behind nginx")
    parser.add_argument("--page", action="store_true", help=f"write the figures into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    text, outcomes = comparison()
    print(text)
    if options.check:
        print(check())
    if options.page:
        write_into_page("rules", text)
        PICTURE.write_text(picture(plot(outcomes)))
