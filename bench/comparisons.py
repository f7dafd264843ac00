"""The benchmarks that compare loads on one server or on several: their servers and rows, as data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from bench.cases import ADD_SUB, ADD_SUB_JSON, BY_KEY, CASES, ECHO, IMAGE_MEAN, LARGE, Case
from bench.clients import BUILD
from bench.loads import SAGEMAKER_BINARY, VERTEX_BINARY, grpc, infer, instances, shared_memory, tabular_tensor
from bench.models import python_models, repositories
from bench.models.repositories import TABULAR
from bench.runner import OTHER, Ask, Benchmark, Row
from bench.servers.server import GRPC, PREDICT, SAGEMAKER, VERTEX, VERTEX_ROUTES, Server, flask, trident
from tests.project import ROOT

ServerOf = Callable[[Path, Path], Server]
THIS, FLASK = "trident", "flask"


def serving(*options: str, environment: dict[str, str] | None = None) -> ServerOf:
    """This checkout's server with these options."""
    return lambda models, log: trident(models, log, *options, environment=environment)


def title(case: Case) -> str:
    return case.title.removesuffix(", binary")


COMPARE = Benchmark(
    "Plain HTTP beside a Flask server under gunicorn's gevent worker.",
    repositories.build,
    {THIS: serving(), FLASK: flask},
    [
        Row(
            case.key,
            case.title,
            {THIS: (THIS, infer(case)), FLASK: (FLASK, infer(case))},
            connections,
            stretch=case.stretch,
        )
        for case in CASES
        if case.key != "e"  # bound by its computation: both servers run the same graph in the same library
        for connections in (1, 16, 64)
    ],
    pairs=12,
    turn_s=1.0,
)

COMPILED, PURE = "compiled", "pure Python"


def one_process(checkout: Path, name: str) -> ServerOf:
    return lambda models, log: trident(
        models, log, *GRPC, "--http-workers=0", checkout=checkout, name=f"trident, {name}"
    )


def beside_row(key: str, title: str, ask: Ask, connections: int, stretch: int = 1) -> Row:
    loads = {server: (server, ask) for server in (COMPILED, PURE, OTHER)}
    if connections == 1:
        return Row(key, title, loads, connections, stretch, rate=1.0, tail=1.0)
    return Row(key, title, loads, connections, stretch, rate=1.2, cpu=0.5, tail=1.0)


def build_with_python(repository: Path) -> None:
    shutil.rmtree(repository, ignore_errors=True)
    repositories.build(repository)
    python_models.build_one(repository)


BESIDE_TRITON = Benchmark(
    "The compiled build (build/compiled, which `make test-compiled` unpacks) and this checkout, each in one process, "
    "beside Triton or another v2 server: HTTP, gRPC and a Python model.",
    build_with_python,
    {COMPILED: one_process(ROOT / "build" / "compiled", COMPILED), PURE: one_process(ROOT, PURE)},
    [
        beside_row(key, title, ask, connections, stretch)
        for key, title, ask, stretch in (
            *(
                (case.key, case.title, infer(case), case.stretch)
                for case in map(BY_KEY.__getitem__, ("a-json", "a-binary", "b", "f-json", "f-binary", "c-echo"))
            ),
            ("python-json", "Python model, JSON", infer(ADD_SUB_JSON, model=python_models.ADD_SUB), 1),
            ("python-binary", "Python model, binary", infer(ADD_SUB, model=python_models.ADD_SUB), 1),
            ("grpc", "add/sub of 16 integers, gRPC", grpc(ADD_SUB), 1),
        )
        for connections in (1, 16, 64)
    ],
    pairs=12,
    turn_s=0.5,
    takes_another=True,
)

GRPC_BENCHMARK = Benchmark(
    "gRPC beside binary HTTP on the same server.",
    repositories.build,
    {THIS: serving(*GRPC, "--http-workers=0")},
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
    ),
    pairs=100,
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


def python_row(key: str, case: Case, model: str, connections: int, **goals: float) -> Row:
    loads = {"Python": (THIS, infer(case, model=model)), "ONNX": (THIS, infer(case))}
    return Row(key, title(case), loads, connections, **goals)  # type: ignore[arg-type]


PYTHON = Benchmark(
    "Models in Python beside ONNX models of the same function on one server.",
    python_models.build,
    {THIS: serving("--http-workers=0")},
    (
        python_row("small", ADD_SUB, python_models.ADD_SUB, 16, rate=0.65, cpu=2.3),
        python_row("small", ADD_SUB, python_models.ADD_SUB, 64, rate=0.65, cpu=2.3),
        python_row("single", ADD_SUB, python_models.ADD_SUB, 1, extra_us=110),
        python_row("large", ECHO, python_models.ECHO, 1, rate=0.6),
        python_row("large", ECHO, python_models.ECHO, 16, rate=0.6),
    ),
)

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
)


def build_platforms(repository: Path) -> None:
    repositories.build(repository)
    repositories.build_tabular(repository)


ROWS = 1000
PLATFORMS = Benchmark(
    "The routes of the platforms beside v2 infer on the same server: SageMaker's /invocations, and Vertex AI's predict "
    "of 1,000 instances and rawPredict.",
    build_platforms,
    {
        "sagemaker": serving(*SAGEMAKER, environment={"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple"}),
        "vertex": serving(*VERTEX, "--vertex-ai-default-model=simple", environment=VERTEX_ROUTES),
        TABULAR: serving(*VERTEX, f"--vertex-ai-default-model={TABULAR}", environment=VERTEX_ROUTES),
    },
    (
        *(
            Row(
                platform,
                case.title,
                {path: (platform, infer(case, port=platform, path=path, binary=binary)), "v2": (platform, infer(case))},
                connections,
                rate=0.95,
            )
            for platform, path, binary, cases in (
                ("sagemaker", "/invocations", SAGEMAKER_BINARY, (ADD_SUB, ADD_SUB_JSON)),
                ("vertex", PREDICT, VERTEX_BINARY, (ADD_SUB,)),
            )
            for case in cases
            for connections in (16, 64)
        ),
        Row(
            "predict",
            f"{ROWS:,} instances",
            {"predict": (TABULAR, instances(ROWS)), "v2 JSON": (TABULAR, tabular_tensor(ROWS))},
            4,
            rate=0.67,
        ),
    ),
    pairs=400,
    turn_s=0.1,
)

COMPARISONS = {
    "beside_triton": BESIDE_TRITON,
    "compare": COMPARE,
    "grpc": GRPC_BENCHMARK,
    "platforms": PLATFORMS,
    "python": PYTHON,
    "shared_memory": SHARED_MEMORY,
    "tracing": TRACING,
    "workers": WORKERS,
}
