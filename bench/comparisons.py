"""The benchmarks that compare loads on one server or on several: their servers and rows as data, and their probes."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.cases import ADD_SUB, ADD_SUB_JSON, BY_KEY, ECHO, IMAGE_MEAN, LARGE, LENGTH, Case
from bench.clients import BUILD, run_client, write_requests
from bench.loads import (
    SAGEMAKER_BINARY,
    VERTEX_BINARY,
    check_outputs,
    grpc,
    infer,
    instances,
    sequences,
    shared_memory,
    tabular_tensor,
    texts,
)
from bench.machine import tree_members
from bench.models import python_models, repositories
from bench.models.python_models import CALLER, CALLS, CLOCK, RESPONSES, STREAMER
from bench.models.repositories import SHIPPED, TABULAR
from bench.runner import Benchmark, Row, Run
from bench.servers.server import (
    GRPC,
    PREDICT,
    SAGEMAKER,
    VERTEX,
    VERTEX_ROUTES,
    GrpcioServer,
    Server,
    flask,
    memory_mb,
    sagemaker_endpoint,
    socket_loop,
    trident,
)
from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import front_ends_of
from tests.contract.servers.session import session_members
from trident.core.engine.in_process import make_engine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.lifecycle.options import EngineOptions

ServerOf = Callable[[Path, Path], Server]
THIS = "trident"
ANSWER_LIMIT_S = 60


def serving(*options: str, environment: dict[str, str] | None = None) -> ServerOf:
    """This checkout's server with these options."""
    return lambda models, log: trident(models, log, *options, environment=environment)


def title(case: Case) -> str:
    return case.title.removesuffix(", binary")


# gRPC

IDLE = 1000
IDLE_SETTLES_S = 3.0
# The preface, and an empty SETTINGS frame: what a client sends before its first call.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def idle_grpc(run: Run) -> None:
    """The memory of idle connections, on which a client has introduced itself and read the server's settings."""
    server = run.server(THIS)
    worker = max(session_members(server.process.pid), key=lambda process: memory_mb(process, "Rss:"))
    before = memory_mb(worker, "Rss:")
    held = []
    for _ in range(IDLE):
        connection = socket.create_connection((HOST, server.ports["grpc"]), timeout=30)
        held.append(connection)
        connection.sendall(HELLO)
        if not connection.recv(4096):
            raise RuntimeError("the server closed a new connection")
    time.sleep(IDLE_SETTLES_S)
    grown_kb = (memory_mb(worker, "Rss:") - before) * 1024 / IDLE
    for connection in held:
        connection.close()
    run.results.note("idle connections", f"memory of each of {IDLE:,}", "KB", [grown_kb])
    run.results.at_most("idle connections", "KB each", 12, grown_kb)


GRPC_BENCHMARK = Benchmark(
    "gRPC beside binary HTTP on the same server, and beside a server of the grpcio package with the same engine.",
    repositories.build,
    {THIS: serving(*GRPC, "--http-workers=0"), "grpcio": GrpcioServer},
    (
        *(
            Row(
                "unary",
                title(ADD_SUB),
                {"gRPC": (THIS, grpc(ADD_SUB)), "HTTP": (THIS, infer(ADD_SUB))},
                connections,
                rate=rate,
                cpu=1.25,
                extra_us=15 if connections == 1 else None,
            )
            for connections, rate in ((1, 1.0), (16, 0.8), (64, 0.8))
        ),
        Row(
            "channel",
            "64 calls in flight",
            {
                "one connection": (THIS, grpc(ADD_SUB, in_flight=64, connections=1)),
                "64 connections": (THIS, grpc(ADD_SUB)),
            },
            64,
            rate=0.9,
        ),
        Row(
            "stream",
            "16 streams",
            {
                "ModelStreamInfer": (THIS, grpc(ADD_SUB, streams=True)),
                "ModelStreamInfer, 4 messages in flight": (THIS, grpc(ADD_SUB, streams=True, in_flight=4)),
                "ModelInfer": (THIS, grpc(ADD_SUB)),
            },
            rate=1.2,
        ),
        *(
            Row(
                "large",
                title(case),
                {"gRPC": (THIS, grpc(case)), "HTTP": (THIS, infer(case))},
                connections,
                stretch=case.stretch,
                rate=0.95,
            )
            for case, connections in ((ECHO, 1), (ECHO, 16), (LARGE, 1), (LARGE, 4))
        ),
        Row("grpcio", title(ADD_SUB), {"trident": (THIS, grpc(ADD_SUB)), "grpcio": ("grpcio", grpc(ADD_SUB))}, rate=4),
    ),
    {"idle": idle_grpc},
    pairs=100,
)

# Large bodies

LARGE_BENCHMARK = Benchmark(
    "Tensors of 600 KB and 16 MB over HTTP beside the least that they cost: a loop over sockets that receives into one "
    "buffer, runs the model and sends. It reuses its memory, copies nothing, and checks nothing.",
    repositories.build_echo,
    {THIS: serving(), "loop": socket_loop},
    [
        Row(
            key,
            title(case),
            {"trident": (THIS, infer(case)), "socket loop": ("loop", infer(case))},
            connections,
            stretch=stretch,
        )
        for key, case, stretch, numbers in (("600KB", ECHO, 1, (1, 16, 64)), ("16MB", LARGE, 4, (1, 4)))
        for connections in numbers
    ],
    pairs=30,
)

SHARED_MEMORY = Benchmark(
    "Tensors that are echoed through shared memory beside the same tensors in the request.",
    repositories.build_echo,
    {THIS: serving("--http-workers=0", "--allow-client-shm=true")},
    [
        Row(
            key,
            title(case),
            {"shared memory": (THIS, shared_memory(case, connections)), "binary": (THIS, infer(case))},
            connections,
            stretch=stretch,
            rate=rate,
        )
        for key, case, stretch, rate, numbers in (("medium", ECHO, 1, 1.5, (1, 16)), ("large", LARGE, 4, 5, (1, 4)))
        for connections in numbers
    ],
)

# Models in Python

STREAMS = 100


def python_row(key: str, case: Case, model: str, connections: int, **goals: float) -> Row:
    loads = {"Python": (THIS, infer(case, model=model)), "ONNX": (THIS, infer(case))}
    return Row(key, title(case), loads, connections, **goals)  # type: ignore[arg-type]


def calls(run: Run) -> None:
    """A call of a Python model to the ONNX model, beside the same request to an engine in the process that asks."""
    case = replace(ADD_SUB, model=CALLER, outputs=("SECONDS",))
    nested: list[float] = []
    for _ in range(10):
        headers, content = run.server(THIS).ask("POST", case.path, *case.body())
        nested.append(float(np.median(np.frombuffer(content[int(headers[LENGTH]) :], np.float64))) * 1e6)
    direct = _direct_us(run.models)
    case_title = "add/sub of 16 integers, asked by a model"
    run.results.note(case_title, f"a call; median of {CALLS}", "µs", nested)
    run.results.note(case_title, "a call to an engine in the same process", "µs", direct)
    more = statistics.median(nested) - statistics.median(direct)
    run.results.at_most(case_title, "µs more than a direct call", 60, more)


def _direct_us(repository: Path) -> list[float]:
    options = EngineOptions(
        repositories=(str(repository),),
        control_mode="explicit",
        load_models=("simple",),
        gpu_metrics=False,
        cpu_metrics=False,
    )
    engine = make_engine(options)
    engine.start()
    engine.wait_loaded(ANSWER_LIMIT_S)
    bridge = ThreadBridge()
    feeds = list(ADD_SUB.feeds().values())
    medians = []
    for _ in range(10):
        took = []
        for _ in range(CALLS):
            began = time.perf_counter()
            inputs = [InputTensor(f"INPUT{n}", "INT32", feed.shape, feed) for n, feed in enumerate(feeds)]
            response = bridge.infer(engine.model("simple"), InferenceRequest("simple", inputs))
            took.append(time.perf_counter() - began)
            if response.error is not None:
                raise response.error
        medians.append(statistics.median(took) * 1e6)
    engine.begin_exit()
    engine.finish(ANSWER_LIMIT_S)
    return medians


def stream(run: Run) -> None:
    """Responses a second of one request after another, as events over HTTP, and how soon the first one arrives."""
    rates: list[float] = []
    first_ms: list[float] = []
    sent_ms: list[float] = []
    connection = http.client.HTTPConnection(HOST, run.server(THIS).ports["http"], timeout=ANSWER_LIMIT_S)

    def ask(model: str) -> http.client.HTTPResponse:
        connection.request("POST", f"/v2/models/{model}/generate_stream", body=json.dumps({"TEXT": "x"}))
        return connection.getresponse()

    for _ in range(STREAMS):
        began = time.perf_counter()
        answer = ask(STREAMER)
        parts = [answer.read1(1 << 16)]
        first_ms.append((time.perf_counter() - began) * 1e3)
        while part := answer.read1(1 << 20):
            parts.append(part)
        took_s = time.perf_counter() - began
        events = b"".join(parts).count(b"\n\n")
        if answer.status != 200 or events != RESPONSES:
            raise RuntimeError(f"'{STREAMER}' answers {answer.status} with {events} events, not {RESPONSES}")
        rates.append(RESPONSES / took_s)
        answer = ask(CLOCK)
        event = answer.read1(1 << 16)
        arrived_ns = time.monotonic_ns()
        answer.read()
        sent_ms.append((arrived_ns - int(json.loads(event.removeprefix(b"data: "))["WORD"])) / 1e6)
    connection.close()
    case_title = f"{RESPONSES} responses of 16 bytes to one request, over HTTP"
    figure = run.results.note(case_title, "responses/s", "responses/s", rates)
    run.results.note(case_title, "the first event after the request", "ms", first_ms)
    run.results.at_least(case_title, "responses/s", 50_000, figure.median)
    figure = run.results.note("from a model's send to the first event at the client", "time", "ms", sent_ms)
    run.results.at_most("from a model's send to the first event at the client", "ms", 2.0, figure.median)


def python_start(run: Run) -> None:
    """The time of a load and the memory of the process that it starts."""
    server = run.server(THIS)
    seconds: list[float] = []
    memory: list[float] = []
    for _ in range(7):
        server.unload(python_models.ADD_SUB)
        before = tree_members(server.process.pid)
        began = time.perf_counter()
        server.load(python_models.ADD_SUB)
        seconds.append(time.perf_counter() - began)
        (process,) = tree_members(server.process.pid) - before
        memory.append(memory_mb(process, "Private_Clean:", "Private_Dirty:"))
    case_title = "a Python model is loaded: a process, Python, numpy"
    took = run.results.note(case_title, "load", "s", seconds)
    used = run.results.note(case_title, "memory of its process that no other shares", "MB", memory)
    run.results.at_most(case_title, "s", 0.25, took.median)
    run.results.at_most(case_title, "MB", 35, used.median)


PYTHON = Benchmark(
    "Models in Python beside ONNX models of the same function on one server, calls of a model to another model, "
    "streams of responses, and the cost of a load.",
    python_models.build,
    {THIS: serving("--http-workers=0", "--model-control-mode=explicit", "--load-model=*")},
    (
        python_row("small", ADD_SUB, python_models.ADD_SUB, 16, rate=0.65, cpu=2.3),
        python_row("small", ADD_SUB, python_models.ADD_SUB, 64, rate=0.65, cpu=2.3),
        python_row("single", ADD_SUB, python_models.ADD_SUB, 1, extra_us=110),
        python_row("large", ECHO, python_models.ECHO, 1, rate=0.6),
        python_row("large", ECHO, python_models.ECHO, 16, rate=0.6),
    ),
    {"calls": calls, "stream": stream, "start": python_start},
)

# Ensembles and sequences

ENSEMBLES = Benchmark(
    "An ensemble of two add/sub steps beside one of them.",
    repositories.build_ensemble,
    {THIS: serving()},
    [
        Row(
            f"{connections}",
            title(ADD_SUB),
            {
                "ensemble": (THIS, infer(ADD_SUB, model="ensemble", checked=False)),
                "one step": (THIS, infer(ADD_SUB, model="first", checked=False)),
            },
            connections,
        )
        for connections in (1, 16, 64)
    ],
)
SEQUENCES = Benchmark(
    "Models with sequences, one for each connection, beside the same graphs with dynamic batching.",
    repositories.build_sequences,
    {THIS: serving()},
    [
        Row(
            graph,
            graph.replace("_", " "),
            {"sequences": (THIS, sequences(graph, connections)), "batched": (THIS, sequences(graph, 0))},
            connections,
        )
        for graph in ("simple", "running_mean")
        for connections in (1, 16, 64)
    ],
    pairs=40,
)

# Buckets

BUCKETS = Benchmark(
    "Batch buckets: texts of 5 to 128 tokens for a small transformer, with several buckets and without any.",
    repositories.build_transformers,
    {THIS: serving()},
    [
        Row(
            "texts",
            "texts of 5 to 128 tokens",
            {name.replace("_", " "): (THIS, texts(name)) for name in repositories.BUCKETS},
        )
    ],
)

# Tracing

TRACES = {"all": "rate=1", "1 in 1,000": "rate=1000", "off": "level=OFF"}


def tracing(setting: str) -> ServerOf:
    file = BUILD / "tracing" / f"{setting.replace('=', '-')}.trace"
    levels = [setting] if "level" in setting else ["level=TIMESTAMPS", setting]
    return serving(f"--trace-config=triton,file={file}", *(f"--trace-config={each}" for each in levels))


TRACING = Benchmark(
    "What tracing costs: all requests or one in 1,000 into Triton's file, beside a server that traces nothing.",
    repositories.build,
    {name: tracing(setting) for name, setting in TRACES.items()},
    [Row("add-sub", title(ADD_SUB), {name: (name, infer(ADD_SUB)) for name in TRACES})],
    pairs=100,
)

# Front ends before an engine

GROWTH_REQUESTS = 100_000


def workers_memory(run: Run) -> None:
    """The private memory of front ends, and that of all processes before and after many requests."""
    server = run.server("2 front ends")
    requests = write_requests(ADD_SUB.key, ADD_SUB.body()[0], headers=ADD_SUB.body()[1])
    url = server.url(ADD_SUB.path)
    run_client(url, requests, connections=16, seconds=5)
    # Private memory would be free without the front end. Pages that forked processes share would stay.
    private = [memory_mb(process, "Private_Clean:", "Private_Dirty:") for process in front_ends_of(server)]
    run.results.note("memory", "private, of each of two front ends", "MB", private)
    run.results.at_most("memory", "MB that a second front end costs", 60, max(private))
    before, sent = server.total_mb("Pss:"), 0
    while sent < GROWTH_REQUESTS:
        sent += run_client(url, requests, connections=16, seconds=5).requests
    growth = server.total_mb("Pss:") - before
    run.results.note("memory", f"growth over {sent} requests", "MB", [growth])
    run.results.at_most("memory", "MB of growth over 100,000 requests", 5, growth)


FRONT_ENDS = {
    "one process": ("--http-workers=0",),
    "1 front end": ("--http-workers=1",),
    "2 front ends": ("--http-workers=2",),
    "2 engines": ("--http-workers=2", "--engines=2"),
}


def workers_row(key: str, case: Case, connections: int, over: str, base: str, **goals: float) -> Row:
    loads = {name: (name, infer(case)) for name in (over, base)}
    return Row(key, case.title, loads, connections, case.stretch, **goals)


WORKERS = Benchmark(
    "Front ends before an engine process beside one process, and two engines beside one.",
    repositories.build,
    {name: serving(*options) for name, options in FRONT_ENDS.items()},
    (
        workers_row("small", ADD_SUB, 16, "1 front end", "one process", rate=1.25, cpu=0.8),
        workers_row("small", ADD_SUB, 64, "1 front end", "one process", rate=1.4, cpu=0.8),
        workers_row("small", ADD_SUB, 64, "2 front ends", "one process", rate=1.6),
        workers_row("small", ADD_SUB_JSON, 64, "2 front ends", "one process", rate=1.6),
        workers_row("single", ADD_SUB, 1, "1 front end", "one process", extra_us=80),
        workers_row("large", ECHO, 16, "1 front end", "one process", rate=1.3),
        workers_row("json", IMAGE_MEAN, 16, "2 front ends", "1 front end", rate=1.8),
        workers_row("engines", ADD_SUB, 64, "2 engines", "2 front ends"),
        workers_row("engines", BY_KEY["d-binary"], 64, "2 engines", "2 front ends"),
    ),
    {"memory": workers_memory},
)

# SageMaker

PING_CONNECTIONS = 64
PING_INTERVAL_S = 0.02
PING_QUIET_S = 2.0
MULTI_MODEL = BY_KEY["d-binary"]
CYCLES = 2
ABOVE_START_MB = 20.0
ABOVE_START = 0.1


def build_platform(repository: Path) -> None:
    """Two repositories of one model each, for the ports of the platforms."""
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(SHIPPED / "simple", repository / "one" / "simple")
    repositories.build_tabular(repository / "tabular")


def one_model(folder: str, model: str, *options: str, environment: dict[str, str] | None = None) -> ServerOf:
    def made(models: Path, log: Path) -> Server:
        named = [option.format(model=model) if "{model}" in option else option for option in options]
        return trident(models / folder, log, *named, environment=environment)

    return made


class Connection:
    """One connection that stays open, as the platform's does."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_LIMIT_S)
        self.close = self._connection.close

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        self._connection.request(method, path, body, headers or {})
        response = self._connection.getresponse()
        return response.status, response.headers, response.read()


def ping(run: Run) -> None:
    """The platform's probe of an idle server, and while clients keep the container fully busy."""
    server = run.server(THIS)
    connection = Connection(server.ports["sagemaker"])
    failed = 0

    def times_ms(is_over: Callable[[], bool]) -> list[float]:
        nonlocal failed
        found: list[float] = []
        due = time.perf_counter()
        while not is_over():
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            failed += connection.ask("GET", "/ping")[0] != 200
            end = time.perf_counter()
            # Pings that fell due meanwhile had to wait too: a slow answer must not count only once.
            while start < end:
                found.append((end - start) * 1e3)
                start += PING_INTERVAL_S
            due = start
        return found

    end = time.perf_counter() + PING_QUIET_S
    quiet = times_ms(lambda: time.perf_counter() > end)
    with infer(ADD_SUB, port="sagemaker", path="/invocations", binary=SAGEMAKER_BINARY)(server) as load:
        client = load.start(connections=PING_CONNECTIONS, seconds=run.options.seconds)
        busy = times_ms(lambda: client.poll() is not None)
        client.communicate()
    connection.close()
    run.results.note("ping, nothing else", "/ping", "ms", quiet)
    case_title = f"ping, {PING_CONNECTIONS} connections"
    run.results.note(case_title, "/ping", "ms", busy)
    p99_ms = float(np.percentile(busy, 99))
    run.results.note(case_title, "/ping, p99", "ms", [p99_ms])
    run.results.at_most(case_title, "p99 of /ping, ms", 50, p99_ms)
    run.results.at_most(case_title, "failed pings", 0, failed)


def multi_model(run: Run) -> None:
    """Load, invoke and unload many models, one request after another, twice; the second cycle must return its memory.

    The first cycle includes what a process allocates only once: code, threads, an allocator's arenas.
    """
    root = run.folder / "multi-model"
    shutil.rmtree(root, ignore_errors=True)
    names = [f"{number:032x}" for number in range(run.options.models)]
    for name in names:
        shutil.copytree(SHIPPED / MULTI_MODEL.model, root / name / "model")
    body, headers = MULTI_MODEL.body()
    headers = {"Content-Type": f"{SAGEMAKER_BINARY}{headers[LENGTH]}"}
    with sagemaker_endpoint(root, run.folder / "multi-model.log") as server:
        server.repository = SHIPPED
        connection = Connection(server.ports["http"])

        def resident_mb() -> float:
            server.settle()
            # With few models, the arbiter that started the process which has them is larger.
            return max(
                memory_mb(each, "Rss:") for each in set(session_members(server.process.pid)) - {server.process.pid}
            )

        for cycle in range(1, CYCLES + 1):
            print(f"{len(names)} models: cycle {cycle} of {CYCLES}", file=sys.stderr, flush=True)
            case_title = f"multi-model, cycle {cycle}"
            before = resident_mb()
            steps: dict[str, Callable[[str], tuple[int, http.client.HTTPMessage, bytes]]] = {
                "load": lambda name: connection.ask(
                    "POST",
                    "/models",
                    json.dumps({"model_name": name, "url": str(root / name / "model")}).encode(),
                    {"Content-Type": "application/json"},
                ),
                "invoke": lambda name: connection.ask("POST", f"/models/{name}/invoke", body, headers),
                "unload": lambda name: connection.ask("DELETE", f"/models/{name}"),
            }
            for step, ask in steps.items():
                took_ms = []
                for name in names:
                    start = time.perf_counter()
                    status, answered, content = ask(name)
                    took_ms.append((time.perf_counter() - start) * 1e3)
                    if status != 200:
                        raise RuntimeError(f"the {step} of '{name}' is answered with {status}: {content[:300]!r}")
                    if step == "invoke" and name == names[-1]:
                        check_outputs(server, MULTI_MODEL, answered, content)
                if step == "invoke":
                    run.results.note(case_title, f"resident, {len(names)} models loaded", "MB", [resident_mb()])
                run.results.note(case_title, step, "ms", took_ms)
                run.results.note(case_title, f"{step}, p99", "ms", [float(np.percentile(took_ms, 99))])
            after = resident_mb()
            run.results.note(case_title, "resident, before and after", "MB", [before, after])
        most = max(ABOVE_START_MB, ABOVE_START * before)
        run.results.at_most(case_title, "MB above those before", round(most, 1), after - before)
        connection.close()
    shutil.rmtree(root)


SAGEMAKER_BENCHMARK = Benchmark(
    "SageMaker's container: /invocations beside v2 infer on the same server, models of a multi-model endpoint that are "
    "loaded, invoked and unloaded, and /ping under full load.",
    build_platform,
    {THIS: one_model("one", "simple", *SAGEMAKER)},
    [
        Row(
            "invocations",
            case.title,
            {
                "/invocations": (THIS, infer(case, port="sagemaker", path="/invocations", binary=SAGEMAKER_BINARY)),
                "v2 infer": (THIS, infer(case)),
            },
            connections,
            rate=0.95,
        )
        for case in (ADD_SUB, ADD_SUB_JSON)
        for connections in (16, 64)
    ],
    {"multi-model": multi_model, "ping": ping},
    pairs=400,
    turn_s=0.1,
    arguments={"seconds": (60, "ping: seconds of load"), "models": (200, "multi-model: how many")},
)

# Vertex AI

ROWS = 1000
_VERTEX_OPTIONS = (*VERTEX, "--vertex-ai-default-model={model}")
VERTEX_BENCHMARK = Benchmark(
    "Vertex AI's container: predict of 1,000 instances beside the same numbers as one v2 JSON tensor and beside Flask "
    "handlers, and rawPredict with binary tensors beside v2 infer.",
    build_platform,
    {
        TABULAR: one_model("tabular", TABULAR, *_VERTEX_OPTIONS, environment=VERTEX_ROUTES),
        "simple": one_model("one", "simple", *_VERTEX_OPTIONS, environment=VERTEX_ROUTES),
        "flask": lambda models, log: flask(models / "tabular", log),
    },
    (
        Row(
            "predict",
            f"{ROWS:,} instances",
            {"predict": (TABULAR, instances(ROWS)), "v2 JSON": (TABULAR, tabular_tensor(ROWS))},
            4,
            rate=0.67,
        ),
        *(
            Row(
                "flask",
                f"{ROWS:,} instances",
                {"predict": (TABULAR, instances(ROWS)), name: ("flask", instances(ROWS, port="http", path=path))},
                4,
                rate=rate,
            )
            for name, path, rate in (
                ("Flask, a run each", "/predict", 10.0),
                ("Flask, one run", "/predict_together", None),
            )
        ),
        *(
            Row(
                "raw",
                title(ADD_SUB),
                {
                    "rawPredict": ("simple", infer(ADD_SUB, port="vertex", path=PREDICT, binary=VERTEX_BINARY)),
                    "v2 infer": ("simple", infer(ADD_SUB)),
                },
                connections,
                rate=0.95,
            )
            for connections in (16, 64)
        ),
    ),
    pairs=400,
    turn_s=0.1,
)

COMPARISONS = {
    "buckets": BUCKETS,
    "ensembles": ENSEMBLES,
    "grpc": GRPC_BENCHMARK,
    "large": LARGE_BENCHMARK,
    "python": PYTHON,
    "sagemaker": SAGEMAKER_BENCHMARK,
    "sequences": SEQUENCES,
    "shared_memory": SHARED_MEMORY,
    "tracing": TRACING,
    "vertex": VERTEX_BENCHMARK,
    "workers": WORKERS,
}
