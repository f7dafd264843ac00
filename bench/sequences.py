"""Models with sequences beside the same graphs with dynamic batching, over HTTP, and the memory of open sequences.

    python -m bench sequences                          about 2 minutes
    python -m bench sequences --connections 64 --pairs 20
    python -m bench sequences --options=--http-workers=1

All models are on one server and are asked by turns of a fraction of a second. `add/sub` has no controls, so that its
requests differ only in their sequences, one for each connection. `running mean` keeps two states; beside it the client
sends them. A ratio is the figure with sequences over that without: the median of the pairs' ratios, with the 95 %
interval of that median in brackets. Memory is that of the process of an engine without front ends.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import statistics
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tritonclient.http as triton

from bench import wrk
from bench.machine import LoadWatch
from bench.results import names_among, number, positive, table
from bench.servers.server import Server, trident
from bench.turns import HttpLoad, Ratio, Turns
from tests.project import ROOT
from trident.core.engine.in_process import make_engine
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.lifecycle.options import EngineOptions

BUILD = ROOT / "build" / "bench" / "sequences"
OPEN = 10_000
HOUR_US = 3_600_000_000
_BATCH = 64
# Lua: each request is that of the next sequence. All have begun before.
_IN_TURN = """\
local bodies, at = {{}}, 0
for index = 1, {count} do
  local file = io.open({folder} .. index, "rb")
  bodies[index] = file:read("*a")
  file:close()
end
wrk.method = "POST"
wrk.headers["Inference-Header-Content-Length"] = "{head}"
request = function()
  at = at % {count} + 1
  return wrk.format(nil, nil, nil, bodies[at])
end
"""


class Pair(NamedTuple):
    """A graph that is served twice, and the inputs of a request without and with sequences."""

    name: str
    folder: str
    with_batching: dict[str, np.ndarray]
    with_sequences: dict[str, np.ndarray]

    @property
    def models(self) -> tuple[str, str]:
        return f"{self.folder}_batched", f"{self.folder}_sequences"


_INTS = {name: np.arange(16, dtype=np.int32)[None] for name in ("INPUT0", "INPUT1")}
_ONE = np.ones((1, 1), np.float32)
PAIRS = (
    Pair("add/sub", "simple", _INTS, _INTS),
    Pair("running mean", "running_mean", dict.fromkeys(("value", "total_in", "count_in"), _ONE), {"value": _ONE}),
)
_STATES = "".join(
    f'state {{ input_name: "{name}_in" output_name: "{name}_out" data_type: TYPE_FP32 dims: [ 1 ] }} '
    for name in ("total", "count")
)
_SEQUENCES = f"max_sequence_idle_microseconds: {HOUR_US} oldest {{ max_candidate_sequences: {OPEN} }}"


def build(repository: Path) -> None:
    """Each graph with `dynamic_batching` and with `sequence_batching`. Inputs and outputs are completed."""
    graphs = {"simple": ROOT / "deploy" / "models" / "simple", "running_mean": ROOT / "deploy/examples/running_mean"}
    for folder, shipped in graphs.items():
        states = _STATES if folder == "running_mean" else ""
        schedulers = {"batched": "dynamic_batching {}", "sequences": f"sequence_batching {{ {_SEQUENCES} {states} }}"}
        for kind, scheduler in schedulers.items():
            model = repository / f"{folder}_{kind}"
            (model / "1").mkdir(parents=True, exist_ok=True)
            (model / "1" / "model.onnx").write_bytes((shipped / "1" / "model.onnx").read_bytes())
            group = "instance_group { count: 1 kind: KIND_CPU }"
            (model / "config.pbtxt").write_text(f"max_batch_size: {_BATCH} {scheduler} {group}")


def _body(inputs: dict[str, np.ndarray], sequence: int = 0, *, start: bool = False) -> tuple[bytes, int]:
    """The binary form, and the length of its JSON."""
    tensors = []
    for name, array in inputs.items():
        tensor = triton.InferInput(name, list(array.shape), "INT32" if array.dtype == np.int32 else "FP32")
        tensors.append(tensor.set_data_from_numpy(array))
    body: tuple[bytes, int] = triton.InferenceServerClient.generate_request_body(
        tensors, sequence_id=sequence, sequence_start=start
    )
    return body


def batched_load(server: Server, pair: Pair) -> HttpLoad:
    batched, _ = pair.models
    body, head = _body(pair.with_batching)
    script = wrk.write_script(BUILD / f"{batched}.lua", body, {"Inference-Header-Content-Length": str(head)})
    return HttpLoad(server, batched, server.url(f"/v2/models/{batched}/infer"), script)


def sequential_load(server: Server, pair: Pair, sequences: int) -> HttpLoad:
    """Requests of `sequences` sequences in turn; all have begun. InferenceServerException if the server refuses one."""
    _, sequential = pair.models
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = BUILD / f"{sequential}-"
    with triton.InferenceServerClient(server.url("").removeprefix("http://")) as client:
        # Ids of one length, so that all heads are as long.
        for index in range(1, sequences + 1):
            body, head = _body(pair.with_sequences, 1000 + index)
            Path(f"{folder}{index}").write_bytes(body)
            tensors = []
            for name, array in pair.with_sequences.items():
                tensor = triton.InferInput(name, list(array.shape), "INT32" if array.dtype == np.int32 else "FP32")
                tensors.append(tensor.set_data_from_numpy(array))
            client.infer(sequential, tensors, sequence_id=1000 + index, sequence_start=True)
    in_turn = BUILD / f"{sequential}.lua"
    lua = _IN_TURN.format(count=sequences, folder=wrk.quoted(str(folder)), head=head)
    in_turn.write_text(wrk.SCRIPT.format(request=lua))
    return HttpLoad(server, sequential, server.url(f"/v2/models/{sequential}/infer"), in_turn)


def _compare(server: Server, pair: Pair, connections: int, options: argparse.Namespace) -> list[str]:
    batched, sequential = pair.models
    loads = {batched: batched_load(server, pair), sequential: sequential_load(server, pair, connections)}
    with Turns(loads, connections=connections, seconds=options.turn) as turns:
        pairs = [turns.round(index) for index in range(options.pairs)]
    rates = [[turn[model].requests_per_second for turn in pairs] for model in (batched, sequential)]
    costs = [[turn[model].cpu_us for turn in pairs] for model in (batched, sequential)]
    return [pair.name, str(connections), *_compared(*rates), *_compared(*costs), str(turns.errors)]


def _compared(one: Sequence[float], other: Sequence[float]) -> list[str]:
    return [number(statistics.median(one)), number(statistics.median(other)), str(Ratio.of(other, one))]


def bytes_of_open(repository: Path, pair: Pair) -> float:
    """Resident bytes of one open sequence: what the memory of the process grows by, over 10,000 of them."""
    with tempfile.TemporaryDirectory() as cache:
        engine = make_engine(
            EngineOptions(repositories=(str(repository),), cache_directory=cache, cpu_metrics=False, gpu_metrics=False)
        )
        engine.start()
        if not engine.wait_loaded(60):
            raise SystemExit("the models were not loaded in 60 s")
        model = engine.model(pair.models[1])

        def begin(first: int, count: int) -> None:
            for number in range(first, first + count):
                answered = threading.Semaphore(0)
                responses: list[InferenceResponse] = []

                def take(response: InferenceResponse, into: list[InferenceResponse] = responses) -> None:
                    into.append(response)
                    answered.release()  # noqa: B023  (awaited in the same turn of the loop)

                inputs = [
                    InputTensor(name, "INT32" if array.dtype == np.int32 else "FP32", array.shape, array.reshape(-1))
                    for name, array in pair.with_sequences.items()
                ]
                request = InferenceRequest(model.spec.name, inputs, correlation_id=number, sequence_start=True)
                model.submit(PendingRequest(request, take))
                answered.acquire()
                if responses[0].error is not None:
                    raise responses[0].error

        begin(1, 1000)
        before = _resident_bytes()
        begin(1001, OPEN - 1000)
        grown = _resident_bytes() - before
        engine.begin_exit()
        engine.finish(0)
    return grown / (OPEN - 1000)


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench sequences", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=names_among(("1", "16", "64")), default=["1", "16", "64"])
    parser.add_argument("--pairs", type=positive, default=40, help="pairs of turns of each row")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of a turn")
    parser.add_argument("--options", type=shlex.split, default=[], help="options for the server, in one text")
    options = parser.parse_args(arguments)
    wrk.require_or_exit()
    repository = BUILD / "models"
    build(repository)
    watch = LoadWatch()
    with ExitStack() as stack:
        server = trident(repository, BUILD / "server.log")
        server.command += options.options
        stack.enter_context(server)
        rows = [
            _compare(server, pair, int(connections), options) for pair in PAIRS for connections in options.connections
        ]
    compared = ["batched", "sequences", "ratio"]
    header = ["model", "connections", *[f"requests/s, {compared[0]}", *compared[1:]]]
    print(table([*header, f"CPU µs/request, {compared[0]}", *compared[1:], "errors"], rows))
    print()
    for pair in PAIRS:
        print(f"An open sequence of {pair.name}, of {OPEN:,}: {number(bytes_of_open(repository, pair))} bytes.")
    print(f"\nMeanwhile {watch.seen().text()}.")
