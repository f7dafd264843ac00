"""Measures models on demand: many models in one server, few in memory, asked for by a Zipf distribution.

    python -m bench models [--models 1000] [--memory-mib 1024] [--rate 200] [--seconds 600]

Half of the models are variants of one graph, the others differ in their layers too. Beside the server: the bare load of
a model (file to session to first answer), a loop with functools.lru_cache, and a server that has only the models that
are asked most. Memory is that of the process, measured from outside, above what it takes without models.
"""

from __future__ import annotations

import functools
import math
import os
import re
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from bench.cases import Case
from bench.results import Figures, Program
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import session_members
from tests.waiting import until
from trident.tools.bench.client import LoadClient, Target, http_request

_MIB = 1 << 20
_MOST_ASKED = 20
_REGISTERED = 10_000
# A worker returns what it has free to the system when it has had no request for five seconds.
_REST_S = 10.0
_LISTS = 20
_LOADED = re.compile(r"^I(\d{4} [\d:.]+) .*'(\w+)' version 1: LOADING -> READY after ([\d.]+) s", re.MULTILINE)


def write_models(repository: Path, count: int, mib: float) -> list[str]:
    """Models of about `mib` MiB each. Returns their names."""
    names = [f"m{number:05d}" for number in range(count)]
    for number, name in enumerate(names):
        width = 256 if number % 2 else 192 + 64 * (number // 2 % 3)
        weights = np.random.default_rng(number)
        layers = max(1, round(mib * _MIB / (4 * width * width)))
        nodes, kept, last = [], [], "INPUT"
        for layer in range(layers):
            matrix = (weights.standard_normal((width, width)) / width).astype(np.float32)
            kept.append(numpy_helper.from_array(matrix, f"w{layer}"))
            nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [last := f"h{layer}"]))
        nodes.append(helper.make_node("Identity", [last], ["OUTPUT"]))
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["n", width]) for end in ("INPUT", "OUTPUT")]
        graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], kept)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path = repository / name / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        onnx.save(model, path)
    return names


def width_of(repository: Path, name: str) -> int:
    """The length of a model's rows, from its graph without its weights."""
    graph = onnx.load(repository / name / "1" / "model.onnx").graph
    return int(graph.input[0].type.tensor_type.shape.dim[1].dim_value)


def zipf(names: Sequence[str], count: int) -> list[str]:
    order = np.random.default_rng(1).permutation(len(names))
    weights = 1.0 / np.arange(1, len(names) + 1)
    chosen = np.random.default_rng(2).choice(len(names), size=count, p=weights / weights.sum())
    return [names[order[each]] for each in chosen]


def bare_load(repository: Path, name: str, width: int) -> float:
    """Seconds from the file to the first answer."""
    began = time.perf_counter()
    session = onnxruntime.InferenceSession(
        repository / name / "1" / "model.onnx", providers=["CPUExecutionProvider"], sess_options=_one_thread()
    )
    session.run(None, {"INPUT": np.zeros((1, width), np.float32)})
    return time.perf_counter() - began


def _one_thread() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


@dataclass(frozen=True)
class Answer:
    model: str
    began: float
    seconds: float


def ask_all(port: int, asked: Sequence[str], widths: dict[str, int], rate: float) -> list[Answer]:
    """Ask at `rate` requests a second, whatever the answers do, and count each from the planned moment. Failed requests
    have no answer."""
    made = {name: _request(name, widths[name]) for name in dict.fromkeys(asked)}
    due = [number / rate for number in range(len(asked))]
    with LoadClient(Target(HOST, port, [[made[name] for name in asked]], in_turn=True)) as client:
        client.run(0.0, due=())  # its process is up
        began = time.time()
        sample = client.run(due[-1], due=due)
    pairs = zip(sample.begun, sample.latency, strict=True)
    return [Answer(asked[round(at * rate)], began + at, seconds) for at, seconds in pairs]


def _request(model: str, width: int) -> bytes:
    case = Case(model, "", model, (("INPUT", "FP32", (width,)),), ("OUTPUT",), binary=True)
    body, headers = case.body()
    return http_request("POST", case.path, {"Host": HOST, **headers}, body)


class Memory(threading.Thread):
    """Looks at the memory of the server's processes from outside, every 50 ms."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self._members = session_members(server.process.pid)
        self.peak = 0
        self.is_over = False

    def now(self) -> int:
        return max(_resident(member) for member in self._members)

    def run(self) -> None:
        while not self.is_over:
            self.peak = max(self.peak, self.now())
            time.sleep(0.05)


def _resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cold_among(answers: Sequence[Answer], log: str) -> tuple[list[float], list[float]]:
    """Seconds of the answers whose model was loaded meanwhile, and of the others."""
    year = datetime.now(UTC).year
    loads: dict[str, list[float]] = {}
    for moment, name, _ in _LOADED.findall(log):
        at = datetime.strptime(f"{year}{moment}", "%Y%m%d %H:%M:%S.%f").replace(tzinfo=UTC)
        loads.setdefault(name, []).append(at.timestamp())
    cold: list[float] = []
    warm: list[float] = []
    for answer in answers:
        was_loaded = any(answer.began <= at <= answer.began + answer.seconds for at in loads.get(answer.model, ()))
        (cold if was_loaded else warm).append(answer.seconds)
    return cold, warm


def percentile(seconds: Sequence[float], part: int) -> float:
    """In milliseconds."""
    return 1e3 * float(np.percentile(seconds, part)) if len(seconds) else math.nan


def lru_loop(
    repository: Path, asked: Sequence[str], widths: dict[str, int], size: int
) -> tuple[list[float], list[float]]:
    """The loop that people write: seconds of misses and of hits, one after the other, without a wait, for a minute."""

    @functools.lru_cache(maxsize=size)
    def session(name: str) -> onnxruntime.InferenceSession:
        path = repository / name / "1" / "model.onnx"
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"], sess_options=_one_thread())

    misses: list[float] = []
    hits: list[float] = []
    until_s = time.monotonic() + 60
    for name in asked:
        if time.monotonic() > until_s:
            break
        before, began = session.cache_info().misses, time.perf_counter()
        session(name).run(None, {"INPUT": np.full((1, widths[name]), 0.5, np.float32)})
        (misses if session.cache_info().misses > before else hits).append(time.perf_counter() - began)
    return misses, hits


def _serve(repository: Path, log: Path, *options: str) -> ServerProcess:
    return ServerProcess(repository, log, "--platform=plain", "--allow-grpc=false", "--http-workers=0", *options)


def measure_registered(figures: Figures, folder: Path, model: Path) -> None:
    """The cost of models that nothing asks for: one and many of them, which are links to one file."""
    held = {}
    for count in (1, _REGISTERED):
        repository = folder / f"registered-{count}"
        for number in range(count):
            path = repository / f"m{number:05d}" / "1" / "model.onnx"
            path.parent.mkdir(parents=True)
            path.hardlink_to(model)
        began = time.perf_counter()
        with _serve(repository, folder / f"log-{count}", "--model-control-mode=demand") as server:
            started = time.perf_counter() - began
            lists = []
            for _ in range(_LISTS):
                began = time.perf_counter()
                assert len(server.json("POST", "/v2/repository/index", {})) == count
                lists.append(time.perf_counter() - began)
            held[count] = Memory(server).now()
    case = f"{_REGISTERED:,} registered"
    figures.at_most(case, "KB of each", 20, (held[_REGISTERED] - held[1]) / (_REGISTERED - 1) / 1e3)
    figures.at_most(case, "seconds to start", 10, started)
    figures.at_most(case, "seconds of a list, the client's part included, median", 0.1, statistics.median(lists))


def main(arguments: Sequence[str]) -> None:
    parser = Program("models", __doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--mib", type=float, default=10.0, help="MiB of a model")
    parser.add_argument("--memory-mib", type=int, default=1024, help="the budget of the models")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=600.0)
    given, publication, figures = parser.begin(arguments)

    def note(case: str, seconds: Sequence[float]) -> float:
        """Note the latencies of a case. Returns the 99th percentile."""
        figures.note(case, f"p50 of {len(seconds):,}", "ms", [percentile(seconds, 50)])
        return figures.note(case, f"p99 of {len(seconds):,}", "ms", [percentile(seconds, 99)]).median

    with tempfile.TemporaryDirectory(prefix="on-demand-") as place:
        folder = Path(place)
        repository = folder / "models"
        names = write_models(repository, given.models, given.mib)
        widths = {name: width_of(repository, name) for name in names}
        asked = zipf(names, int(given.rate * given.seconds))
        most = [name for name, _ in Counter(asked).most_common()]
        bare_ms = note("bare load", [bare_load(repository, name, widths[name]) for name in most[:100]])
        demand = ("--model-control-mode=demand", f"--model-memory={given.memory_mib}MiB", "--model-idle-secs=20")
        with _serve(repository, folder / "log", *demand) as server:
            memory = Memory(server)
            ask_all(server.http_port, most[:2], widths, 1.0)
            for name in most[:2]:
                server.json("POST", f"/v2/repository/models/{name}/unload", {})
            until(lambda: not server.json("POST", "/v2/repository/index", {"ready": True}))
            without = memory.now()
            memory.start()
            answers = ask_all(server.http_port, asked, widths, given.rate)
            until(lambda: not server.json("POST", "/v2/repository/index", {"ready": True}), limit_s=120)
            time.sleep(_REST_S)
            after, memory.is_over = memory.now(), True
            cold, warm = cold_among(answers, server.log_text())
        cold_ms, warm_ms = note("cold", cold), note("warm", warm)
        few = [name for name in asked if name in most[:_MOST_ASKED]][: len(asked) // 4]
        loads = [f"--load-model={name}" for name in most[:_MOST_ASKED]]
        with _serve(repository, folder / "log2", "--model-control-mode=explicit", *loads) as server:
            alone = ask_all(server.http_port, few, widths, given.rate)
        alone_ms = note(f"warm, {_MOST_ASKED} models only", [each.seconds for each in alone])
        misses, hits = lru_loop(repository, asked, widths, max(1, int(given.memory_mib / given.mib)))
        note("functools.lru_cache, misses", misses)
        note("functools.lru_cache, hits", hits)
        figures.at_most("requests", f"failed of {len(asked):,}", 0, len(asked) - len(answers))
        taken = (memory.peak - without) / _MIB
        figures.at_most("memory", f"most of {given.memory_mib} MiB, from outside", 1.05, taken / given.memory_mib)
        figures.at_most("memory", "after all are idle over without models", 1.1, after / without)
        figures.at_most("cold", "p99 over the bare load", 2, cold_ms / bare_ms)
        figures.at_most("warm", "p99 over a server with few models", 1.05, warm_ms / alone_ms)
        measure_registered(figures, folder, repository / names[0] / "1" / "model.onnx")
    figures.publish(publication, "-models")
