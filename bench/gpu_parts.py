"""The parts of a run on a GPU: tests, models in the server beside bare sessions, instances, TensorRT, and memory.

Each part is a process of its own with a time limit. It sends what it measures as soon as it has it, so that a part that
fails or is stopped keeps its rows and loses only the rest.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from bench.cases import ADD_SUB, BY_KEY, LENGTH, Case
from bench.clients import BUILD, Load, Run
from bench.loads import infer, registered, shared_body, system_region
from bench.machine import tree_members, tree_seconds
from bench.models import networks, repositories
from bench.results import RESULTS, UNPUBLISHED, Comparison, Figures, Publication
from bench.runner import Ask, Interleaved, NotServed
from bench.servers.server import JSON_HEADERS, Server, trident
from tests.project import ROOT
from trident.core.cuda import CudaDriver, DeviceBlock, IpcHandle
from trident.core.observability.hardware import GpuMeter

AIM = 0.95
BATCHES = (1, 8, 32)
CONNECTIONS = 4
TURN_S = 0.5
WARM_UP_S = 0.3
# More than one execution of a batch takes, which the server still finishes when its client is stopped.
LAST_ANSWER_S = 0.05
WARM_RUNS = 3
PR_SET_CHILD_SUBREAPER = 36
END_S = 30.0
FOLDER = BUILD / "gpu"
SERVING = ("--http-workers=0", "--allow-client-shm=true", "--model-control-mode=explicit")
BASE = "bare session"
RESNET = "ResNet-50-like graph"
BERT = Case(
    "bert", "BERT-base-like graph", "bert", (("IDS", "INT32", (networks.BERT_TOKENS,)),), ("OUTPUT",), binary=True
)


class Part:
    """The input of one part, and the pipe for its rows."""

    def __init__(self, device: str, seconds: float, connection: Connection) -> None:
        self.device = device
        self.pairs = max(2, round(seconds / TURN_S))
        self.models = FOLDER / device
        self._connection = connection

    def send(self, kind: str, *values: object) -> None:
        """Call the method `kind` of the run's results, or append to their list of that name."""
        self._connection.send((kind, values))

    @contextmanager
    def kept_going(self, what: str) -> Iterator[None]:
        """Turn a failure inside the block into a row."""
        try:
            yield
        except Exception as error:
            self.send("remarks", f"{what}: **failed**, {type(error).__name__}: {error}")

    def resnet(self) -> Case:
        case = replace(BY_KEY["e"], title=RESNET)
        return case if self.device == "gpu" else replace(case, inputs=(("INPUT", "FP32", (3, 32, 32)),))

    def write(self, name: str, graph: onnx.ModelProto | None, count: int = 1, more: str = "") -> None:
        """A model whose inputs and outputs the server completes; without `graph`, keep the existing one."""
        group = f"instance_group {{ kind: KIND_{self.device.upper()} count: {count} }}"
        config = f'backend: "onnxruntime" max_batch_size: {max(BATCHES)} {group} {more}\n'
        repositories.write(self.models / name, config, graph)

    @contextmanager
    def server(self, *models: str) -> Iterator[Server]:
        """A server with these models; notes the memory that they take on the GPU once they have run."""
        log = FOLDER / f"{'-'.join(models)}.log"
        before = gpu_megabytes()
        with ExitStack() as stack:
            try:
                named = (f"--load-model={model}" for model in models)
                server = stack.enter_context(trident(self.models, log, *SERVING, *named))
            except RuntimeError as error:
                raise RuntimeError(f"{error}: {' '.join(log.read_text()[-300:].split())}") from error
            loaded = gpu_megabytes()
            yield server
            ran = gpu_megabytes()
        title = f"a server with {' and '.join(models)}"
        if before is None or loaded is None or ran is None:
            self.send("remarks", f"{title}: no figures of its memory on the GPU without NVML")
        else:
            self.send("note", title, "GPU memory, loaded", "MB", [loaded - before])
            self.send("note", title, "GPU memory, after the runs", "MB", [ran - before])

    def compare(self, title: str, loads: dict[str, tuple[Server, Ask]], connections: int = CONNECTIONS) -> Comparison:
        """Interleave the loads that can be opened, and send their rows. The last one is the base and has to open."""
        with ExitStack() as stack:
            found: dict[str, Load] = {}
            for name, (server, ask) in loads.items():
                with self.kept_going(f"{title}, {name}"):
                    found[name] = stack.enter_context(ask(server))
            if list(loads)[-1] not in found:
                raise RuntimeError("there is nothing to compare with")
            with Drained(found, connections=connections, seconds=TURN_S, warm_up_s=WARM_UP_S) as interleaved:
                turns = [interleaved.round(number) for number in range(self.pairs)]
        comparison = Comparison(title, connections, turns, interleaved.errors)
        self.send("comparisons", comparison)
        return comparison

    def beside_bare(self, case: Case, server: Server, provider: str = "", aim: float | None = AIM) -> None:
        """One case in the server, in each way that tensors reach it, beside sessions without a server."""
        graph = self.models / case.model / "1" / "model.onnx"
        title = f"{case.title}, batch {case.rows}"
        session = onnxruntime.InferenceSession(graph, providers=PROVIDERS["cpu"])
        expected = dict(zip(case.outputs, session.run(list(case.outputs), case.feeds()), strict=True))
        headers, body = server.ask("POST", case.path, *case.body())
        answer = case.answer(body, headers[LENGTH])
        off = max(float(abs(answer[name] - array).max() / abs(array).max()) for name, array in expected.items())
        self.send("note", title, "largest difference from the CPU's outputs", "ppm of the largest", [off * 1e6])
        sizes = {name: array.nbytes for name, array in expected.items()}
        ways = {
            "HTTP": infer(case, checked=False),
            "system shared memory": in_shared_memory(case, sizes, system_region),
            "CUDA shared memory": in_shared_memory(case, sizes, cuda_region),
            "bare session, I/O binding": bare(case, graph, provider or self.device, binding=True),
            BASE: bare(case, graph, provider or self.device, binding=False),
        }
        if self.device == "cpu":
            del ways["CUDA shared memory"]
        comparison = self.compare(title, {name: (server, ask) for name, ask in ways.items()})
        for name in comparison.loads:
            if aim is None or name.startswith(BASE):
                continue
            measured = comparison.rate_ratio(name).median
            self.send("at_least", f"{title}, {name}", f"requests/s over the {BASE}", aim, measured)


class Drained(Interleaved):
    """Waits until the server has finished even long executions."""

    def _drain(self, load: Load) -> tuple[int, float]:
        found = super()._drain(load)
        while True:
            time.sleep(LAST_ANSWER_S)
            before, found = found, super()._drain(load)
            if found[0] == before[0]:
                return found


def gpu_megabytes() -> float | None:
    """Memory in use on all GPUs; None without NVML."""
    meter = GpuMeter.open()
    if meter is None:
        return None
    with contextlib.closing(meter):
        return sum(reading.memory_used or 0 for reading in meter.read()) / 2**20


PROVIDERS = {"cpu": ["CPUExecutionProvider"]}
PROVIDERS["gpu"] = ["CUDAExecutionProvider", *PROVIDERS["cpu"]]
PROVIDERS["tensorrt"] = ["TensorrtExecutionProvider", *PROVIDERS["gpu"]]


def session_of(graph: Path, provider: str) -> Any:
    """RuntimeError if ONNX Runtime falls back to another provider."""
    if provider != "cpu":
        onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(graph, providers=PROVIDERS[provider])
    if session.get_providers()[0] != PROVIDERS[provider][0]:
        raise RuntimeError(f"{PROVIDERS[provider][0]} does not load")
    return session


def loop(graph: Path, feeds_file: Path, provider: str, binding: bool, count_file: Path) -> None:
    """Run a session until SIGINT, and count the runs in a file."""
    ended: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: ended.append(number))
    session, feeds = session_of(graph, provider), dict(np.load(feeds_file))
    count = np.memmap(count_file, np.uint64, "w+", shape=(1,))
    device = "cpu" if provider == "cpu" else "cuda"
    bound = session.io_binding()
    for name, feed in feeds.items():
        bound.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(feed, device, 0))
    for output in session.get_outputs():
        bound.bind_output(output.name, device, 0)
    while not ended:
        if binding:
            session.run_with_iobinding(bound)
        else:
            session.run(None, feeds)
        count[0] += 1


class BareServer(Server):
    """A session in a loop, as the runner sees a server."""

    def __init__(self, arguments: list[str], count: Path) -> None:
        super().__init__(BASE, [sys.executable, "-m", "bench.gpu", "loop", *arguments, str(count)], count)
        self.count = count
        self.client = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def requests(self, model: str) -> int:
        return int.from_bytes(self.count.read_bytes(), "little") if self.count.exists() else 0

    def cpu_seconds(self) -> float:
        return tree_seconds(self.client.pid)


class BareRun:
    def __init__(self, loop: subprocess.Popen[str]) -> None:
        self._loop = loop
        self.go_on()

    def pause(self) -> None:
        self._loop.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._loop.send_signal(signal.SIGCONT)

    def end(self) -> int:
        self.go_on()
        self._loop.send_signal(signal.SIGINT)
        self._loop.communicate()
        return 0

    def kill(self) -> None:
        self._loop.kill()
        self._loop.wait()


@dataclass(frozen=True, slots=True)
class BareLoad(Load):
    server: BareServer

    def start(self, connections: int) -> Run:
        return BareRun(self.server.client)


def bare(case: Case, graph: Path, provider: str, binding: bool) -> Ask:
    """A process that runs a session in a loop instead of the server. It waits, warm, for its turns."""

    @contextmanager
    def opened(_: Server) -> Iterator[Load]:
        feeds = FOLDER / f"{case.key}.npz"
        np.savez(feeds, allow_pickle=False, **case.feeds())
        count = FOLDER / f"{uuid.uuid4().hex}.count"
        server = BareServer([str(graph), str(feeds), provider, "binding" if binding else ""], count)
        try:
            while server.requests("") < WARM_RUNS:
                if server.client.poll() is not None:
                    raise RuntimeError(f"the session ended: {server.client.communicate()[1][-300:]}")
                time.sleep(0.01)
            server.client.send_signal(signal.SIGSTOP)
            yield BareLoad(server, case.model, "")
        finally:
            server.client.kill()
            server.client.communicate()
            count.unlink(missing_ok=True)

    return opened


Region = Callable[[Server, bytes], contextlib.AbstractContextManager[str]]


def in_shared_memory(case: Case, sizes: dict[str, int], region: Region) -> Ask:
    """The case with its tensors in shared memory: the inputs, and then the outputs, to which all connections write."""

    @contextmanager
    def opened(server: Server) -> Iterator[Load]:
        content = b"".join(feed.tobytes() for feed in case.feeds().values())
        with region(server, content + bytes(sum(sizes.values()))) as name:
            body = shared_body(case, name, sizes)
            server.ask("POST", case.path, body, JSON_HEADERS)
            yield Load(server, case.model, server.url(case.path), [body], JSON_HEADERS)

    return opened


@contextmanager
def cuda_region(server: Server, content: bytes) -> Iterator[str]:
    driver = CudaDriver.open()
    if driver is None:
        raise NotServed("no GPU")
    with driver.on(0), contextlib.closing(DeviceBlock(driver)) as memory:
        address, handle = memory.address(len(content)), IpcHandle()
        driver.copy_to_device(0, address, np.frombuffer(content, np.uint8).ctypes.data, len(content))
        driver.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        raw = {"b64": base64.b64encode(bytes(handle)).decode()}
        document = {"raw_handle": raw, "device_id": 0, "byte_size": len(content)}
        with registered(server, "cuda", "bench", document):
            yield "bench"


def gpu_tests(part: Part) -> None:
    tests = (ROOT / "tests").rglob("test_*.py")
    files = [str(file) for file in tests if "pytest.mark.gpu" in file.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    log = FOLDER / "tests.log"
    log.write_text(done.stdout + done.stderr)
    summary = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    part.send("remarks", f"tests marked gpu: {summary}; log {log.relative_to(ROOT)}")
    if done.returncode not in (0, 5):  # 5: no such tests
        raise RuntimeError(f"pytest ends with {done.returncode}")


def models(part: Part) -> None:
    small = part.device == "cpu"
    graph = networks.resnet()
    if small:
        for dimension in graph.graph.input[0].type.tensor_type.shape.dim[2:]:
            dimension.dim_value = 32
    part.write("resnet", graph)
    part.write("resnet_two", graph, count=2)
    part.write("simple", onnx.load(repositories.SHIPPED / "simple" / "1" / "model.onnx"))
    tensorrt = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    part.write("resnet_trt", graph, more=tensorrt)
    part.write("bert", networks.bert(48, 2, 4) if small else networks.bert())


def add_sub(part: Part) -> None:
    with part.server("simple") as server:
        part.beside_bare(replace(ADD_SUB, title=ADD_SUB.title.removesuffix(", binary")), server, aim=None)


def batches(part: Part, case: Case) -> None:
    with part.server(case.model) as server:
        for rows in BATCHES:
            with part.kept_going(f"{case.title}, batch {rows}"):
                part.beside_bare(replace(case, rows=rows, key=f"{case.model}-{rows}"), server)


def two_instances(part: Part) -> None:
    case = replace(part.resnet(), rows=8, key="resnet-two")
    with part.server("resnet", "resnet_two") as server:
        loads = {
            "two instances": (server, infer(case, model="resnet_two", checked=False)),
            "one instance": (server, infer(case, checked=False)),
        }
        part.compare(f"{RESNET}, batch 8", loads, 2 * CONNECTIONS)


def tensorrt(part: Part) -> None:
    session_of(part.models / "simple" / "1" / "model.onnx", "tensorrt")
    case = replace(part.resnet(), title=f"{RESNET}, TensorRT", model="resnet_trt")
    with part.server(case.model) as server:
        part.beside_bare(replace(case, rows=8, key="tensorrt-8"), server, "tensorrt")


PARTS: dict[str, tuple[Callable[[Part], None], float]] = {
    "models": (models, 90),
    "tests": (gpu_tests, 200),
    "add_sub": (add_sub, 60),
    "resnet": (lambda part: batches(part, part.resnet()), 180),
    "bert": (lambda part: batches(part, BERT), 180),
    "two_instances": (two_instances, 60),
    "tensorrt": (tensorrt, 150),
}
"""Each part and its limit in seconds."""


def _work(name: str, device: str, seconds: float, connection: Connection) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    part = Part(device, seconds, connection)
    with part.kept_going(name):
        PARTS[name][0](part)


def _run_part(name: str, options: argparse.Namespace, limit_s: float, results: Figures) -> str:
    """Run a part in a process, and return how it ended. Nothing of it stays behind."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    others = tree_members(os.getpid())
    process = context.Process(target=_work, args=(name, options.device, options.seconds, sender))
    began = time.monotonic()
    process.start()
    sender.close()
    ended = False
    with contextlib.suppress(EOFError):
        while receiver.poll(max(0.0, began + limit_s - time.monotonic())):
            kind, values = receiver.recv()
            into = getattr(results, kind)
            (into.append if isinstance(into, list) else into)(*values)
        ended = True
        process.terminate()
    process.join(END_S)
    for member in tree_members(os.getpid()) - others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    process.join()
    if ended:
        return f"**stopped** after {limit_s:.0f} s"
    how = f"**ended with {process.exitcode}** after" if process.exitcode else "took"
    return f"{how} {time.monotonic() - began:.0f} s"


def _describe_gpu() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"


def run(options: argparse.Namespace) -> None:
    if unknown := set(options.only or ()) - set(PARTS):
        raise SystemExit(f"unknown {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    ends = time.monotonic() + options.limit
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Servers that outlive a part become children of this process, which ends them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource_tracker.ensure_running()
    dry = options.device == "cpu"
    folder = options.results or (UNPUBLISHED if dry else RESULTS)
    publication = Publication(argparse.Namespace(results=folder, crowded=True))
    results = Figures(shlex.join(["python", "-m", "bench.gpu", *sys.argv[1:]]))
    results.machine["gpu"] = _describe_gpu()
    results.remarks.append(f"{results.machine['gpu']}; ONNX Runtime {onnxruntime.__version__}")
    # The others need the models.
    for name in dict.fromkeys(["models", *(options.only or PARTS)]):
        limit_s = min(PARTS[name][1], ends - time.monotonic() - END_S)
        outcome = _run_part(name, options, limit_s, results) if limit_s > 0 else "**no time left**"
        results.remarks.append(f"part {name}: {outcome}")
        print(results.remarks[-1], file=sys.stderr, flush=True)
        (FOLDER / "so-far.json").write_text(results.to_json())
    results.publish(publication, "-gpu-dry-run" if dry else "-gpu")
