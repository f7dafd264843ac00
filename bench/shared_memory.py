"""A tensor that is echoed through shared memory beside the same tensor in the request, and the ways to the memory."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shlex
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench import wrk
from bench.cases import CASES as MODEL_CASES
from bench.cases import DATATYPES, Case
from bench.models import served
from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from bench.servers.server import Server, trident
from bench.turns import HttpLoad, Turns
from tests.project import ROOT
from trident.core.shared_memory.regions import DIRECTORY, open_object

SHARED, BINARY = "shared memory", "binary"
_MEDIUM = next(case for case in MODEL_CASES if case.key == "b")
LARGE = Case("large", "16 MB tensor echoed", "identity", (("INPUT", "FP32", (4 << 20,)),), ("OUTPUT",), binary=True)
# wrk sends these bodies in turn, so that connections use their own places.
_ROTATED = """\
local bodies = {{{bodies}}}
local turn = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  turn = turn % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[turn])
end
"""
_SIZES = (4 << 10, 64 << 10, 600_000, 4 << 20, 16 << 20)
_TIMES = 60


@contextmanager
def shared_object(size: int) -> Iterator[str]:
    """The key of an object of `size` bytes."""
    key = f"trident_bench_{uuid.uuid4().hex}"
    path = Path(DIRECTORY, key)
    try:
        path.touch(mode=0o600)
        os.truncate(path, size)
        yield key
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def shared_load(server: Server, case: Case, connections: int, build: Path) -> Iterator[HttpLoad]:
    """Echo the tensor of `case`; each connection has a place for its input and one for its output.

    RuntimeError if the server does not. Its script is written into `build`; the memory is given back at the end.
    """
    ((name, datatype, _),) = case.inputs
    content = case.arrays()[name].astype(DATATYPES[datatype]).tobytes()
    size = len(content)
    with shared_object(2 * connections * size) as key:
        with Path(DIRECTORY, key).open("r+b") as memory:
            memory.write(content * connections)
        _register(server, key, 2 * connections * size)
        try:
            bodies = [_body(case, size, 2 * index, connections) for index in range(connections)]
            _check(server, case, bodies[-1], Path(DIRECTORY, key), content)
            script = build / f"{case.key}-shared.lua"
            script.write_text(wrk.SCRIPT.format(request=_ROTATED.format(bodies=",".join(map(wrk.quoted, bodies)))))
            yield HttpLoad(server, case.model, server.url(case.path), script)
        finally:
            server.exchange("POST", "/v2/systemsharedmemory/unregister")


def _register(server: Server, key: str, size: int) -> None:
    body = json.dumps({"key": key, "byte_size": size}).encode()
    status, _, content = server.exchange("POST", "/v2/systemsharedmemory/region/bench/register", body)
    if status != 200:
        raise RuntimeError(f"the region was not registered: {content.decode()}")


def _body(case: Case, size: int, index: int, connections: int) -> str:
    ((name, datatype, shape),) = case.inputs
    place = {"shared_memory_region": "bench", "shared_memory_byte_size": size}
    given = place | {"shared_memory_offset": index // 2 * size}
    wanted = place | {"shared_memory_offset": (connections + index // 2) * size}
    document = {
        "inputs": [{"name": name, "shape": [1, *shape], "datatype": datatype, "parameters": given}],
        "outputs": [{"name": case.outputs[0], "parameters": wanted}],
    }
    return json.dumps(document, separators=(",", ":"))


def _check(server: Server, case: Case, body: str, path: Path, content: bytes) -> None:
    """RuntimeError unless the last place has the echo."""
    status, _, answer = server.exchange("POST", case.path, body.encode())
    with path.open("rb") as memory:
        memory.seek(-len(content), os.SEEK_END)
        if status != 200 or memory.read() != content:
            raise RuntimeError(f"'{case.model}' does not echo through shared memory: {status} {answer.decode()}")


class Bench:
    """One server; `pairs` turns of `seconds` for each comparison."""

    def __init__(self, results: Figures, server: Server, build: Path, *, pairs: int, seconds: float) -> None:
        self.results = results
        self._server = server
        self._build = build
        self._pairs = pairs
        self._seconds = seconds

    def compare(self, case: Case, connections: int, goal: float, stretch: int = 1) -> None:
        """Echo the tensor of `case` both ways."""
        with shared_load(self._server, case, connections, self._build) as shared:
            script = wrk.write_script(self._build / f"{case.key}.lua", *case.body())
            loads = {SHARED: shared, BINARY: HttpLoad(self._server, case.model, shared.url, script)}
            with Turns(loads, connections=connections, seconds=self._seconds * stretch) as turns:
                pairs = [turns.round(number) for number in range(self._pairs)]
        title = f"{case.title.removesuffix(', binary')}, {connections} connections"
        for way in loads:
            self.results.note(title, f"requests/s; {way}", "requests/s", [p[way].requests_per_second for p in pairs])
            self.results.note(title, f"CPU per request; {way}", "µs", [p[way].cpu_us for p in pairs])
        ratio = statistics.median(p[SHARED].requests_per_second / p[BINARY].requests_per_second for p in pairs)
        self.results.at_least(title, "requests/s over those of the binary way", goal, ratio)
        self.results.at_most(title, "errors", 0, turns.errors)


def medium(bench: Bench) -> None:
    for connections in (1, 16):
        bench.compare(_MEDIUM, connections, 1.5)


def large(bench: Bench) -> None:
    for connections in (1, 4):
        bench.compare(LARGE, connections, 5, stretch=4)


def ways(bench: Bench) -> None:
    """What a copy through the descriptor costs, beside one through a map, and beside none."""
    for size in _SIZES:
        with shared_object(size) as key, Path(DIRECTORY, key).open("r+b") as file:
            file.write(os.urandom(size))
            file.flush()
            memory = open_object(key)
            with mmap.mmap(file.fileno(), size) as mapping:
                mapped = np.frombuffer(mapping, np.uint8)
                kept = mapped.copy()
                ways = {
                    "preadv": lambda memory=memory, kept=kept: memory.read(0, kept.data),
                    "copy from a map": lambda mapped=mapped, kept=kept: np.copyto(kept, mapped),
                    "pwritev": lambda memory=memory, kept=kept: memory.write(0, kept.data),
                    "copy into a map": lambda mapped=mapped, kept=kept: np.copyto(mapped, kept),
                }
                for name, way in ways.items():
                    bench.results.note(f"{size:,} bytes", name, "µs", _times_us(way))
                del mapped, ways, way


def _times_us(call: Callable[[], object]) -> list[float]:
    found: list[float] = []
    for _ in range(_TIMES):
        start = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - start) / 1000)
    return found


CASES: dict[str, Callable[[Bench], None]] = {"medium": medium, "large": large, "ways": ways}


#         python -m bench shared_memory                             all of it, about 3 minutes
#         python -m bench shared_memory --only large --pairs 20
#         python -m bench shared_memory --http-workers=2
#
# The cases; the first two by turns of a fraction of a second:
#
#         medium    600 KB echoed at 1 and 16 connections
#         large     16 MB echoed at 1 and 4 connections
#         ways      a copy through the descriptor of the memory, beside one through a map of it


BUILD = ROOT / "build" / "bench" / "shared_memory"
CONDITIONS = "Server and clients share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench shared_memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--pairs", type=positive, default=60, help="pairs of turns; the median of their ratios counts")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of each turn")
    parser.add_argument("--http-workers", type=int, default=0, help="front ends before an engine process")
    parser.add_argument("--map-bytes", type=int, default=0, help="the server's --client-shm-map-bytes")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    served.build(models)
    command = shlex.join(["python", "-m", "bench", "shared_memory", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    server = trident(models, BUILD / "server.log")
    server.command += [f"--http-workers={options.http_workers}", "--allow-client-shm=true"]
    server.command.append(f"--client-shm-map-bytes={options.map_bytes}")
    with server:
        bench = Bench(results, server, BUILD, pairs=options.pairs, seconds=options.turn)
        for name in options.only:
            print(f"{name}: begins", file=sys.stderr, flush=True)
            CASES[name](bench)
    parts = [] if set(options.only) == set(CASES) else options.only
    workers = [f"workers-{options.http_workers}"] if options.http_workers else []
    mapped = ["mapped"] if options.map_bytes else []
    results.publish(publication, "-".join(["-shared-memory", *parts, *workers, *mapped]))
