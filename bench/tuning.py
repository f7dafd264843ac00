"""`trident tune` beside an exhaustive grid: how near the search comes to the best of the grid, and in what time.

The grid measures every backend and precision, number of instances and of threads with every batching, delayed and
padded too, one after the other, as a script would. Then the search has a tenth of the time that the grid took. The
search's choice and the best three of the grid are asked in turns, at the loads among which their best may be, which
tells the best of the grid; then this one and the choice alone, which tells by how much they differ.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import onnx
from onnx import TensorProto

from bench.models import networks
from bench.models.repositories import SHIPPED, write
from bench.results import Figures, Program, names_among
from trident.core.backends.cpu_budget import available_cores
from trident.core.config.spec import ModelSpec
from trident.tools.bench.candidates import Candidate
from trident.tools.bench.requests import Encoding, Inputs, make_inputs
from trident.tools.bench.tune import read_config
from trident.tools.bench.tuning import AS_IT_IS, Bench, Objective, Trial, outcome, search

# Small enough to answer several times within the target on two cores. People start with one instance, no batching.
_STAGES, _IMAGE = ((2, 16, 1), (2, 32, 2), (2, 64, 2)), (3, 96, 96)
_PLAIN = 'backend: "onnxruntime" max_batch_size: 64 instance_group {{ count: 1 kind: KIND_CPU }}\n{tensors}\n'
_MODELS = {
    "digits": None,
    "resnet": lambda: networks.resnet(_STAGES, _IMAGE),
    "bert": lambda: networks.bert(columns=128, layers=2, heads=2),
    "trees": networks.trees,
}
# A little less than the tenth that is the goal: a search ends with the turn that it is in.
_SHARE, _GOAL = 0.09, 0.1
_ENGINES, _COUNTS = (("onnxruntime", ""), ("openvino", ""), ("openvino", "bf16")), (1, 2)
_BATCHINGS = ((1, 0, False), (4, 0, False), (16, 0, False), (64, 0, False), (64, 2000, False), (64, 0, True))
# Of the comparisons at the end: the best three of the grid are measured again.
_RIVALS, _ROUNDS, _CHOSEN_S, _COMPARED_S = 3, 24, 10.0, 20.0


def measure(name: str, repository: Path, target_ms: float, seconds: float, figures: Figures) -> None:
    make = _MODELS[name]
    if make is not None:
        graph = make()
        write(repository / name, _PLAIN.format(tensors=_tensors(graph)), graph)
    folder = (repository if make is not None else SHIPPED) / name
    config = read_config(folder, str(folder.parent), name)
    objective = Objective(target_ms=target_ms)

    def bench() -> Bench:
        def inputs(spec: ModelSpec) -> list[Inputs]:
            return make_inputs(spec, "random", 1, {})

        return Bench(name, folder, config, objective, inputs, Encoding(), lambda _: None, lower=True)

    with bench() as grid, bench() as searched:
        cores = int(available_cores())
        ways = [
            Candidate(backend, count, threads, batch, delay_us, precision, is_padded)
            for (backend, precision), count, threads, (batch, delay_us, is_padded) in product(
                _ENGINES, _COUNTS, _COUNTS, _BATCHINGS
            )
        ]
        began = time.monotonic()
        for way in [AS_IT_IS, *ways]:
            found = grid.sweep(way, seconds)
            print(f"{name}, {way.text}: {outcome(found, objective)}", file=sys.stderr, flush=True)
            grid.stop(way)
        grid_s = time.monotonic() - began
        began = time.monotonic()
        search(searched, cores, _SHARE * grid_s)
        search_s = time.monotonic() - began
        best, chosen = grid.ranked()[0], searched.chosen()
        figures.note(name, f"grid of {len(ways) + 1} ways", "s", [grid_s])
        measured = sum(bool(trial.levels) for trial in searched.trials.values())
        figures.note(name, f"search, {measured} ways", "s", [search_s])
        for who, trial in (("the grid's best", best), ("the search's choice", chosen)):
            figures.remarks.append(f"{name}, {who}: {trial.candidate.text}: {outcome(trial, objective)} when measured.")
        figures.at_most(name, "time of the search over the grid's", _GOAL, search_s / grid_s)
        ratio = _compare(name, "the grid's best", searched, chosen, grid.ranked()[:_RIVALS], seconds, figures)
        figures.at_least(name, "requests/s of the search's choice over the grid's best", 0.95, ratio)
        _compare(name, "the model as it was", searched, chosen, [searched.trials[AS_IT_IS]], seconds, figures)


def _tensors(graph: onnx.ModelProto) -> str:
    """Inputs and outputs, without which the configuration is completed, and then has dynamic batching."""
    parts = []
    for side, values in (("input", graph.graph.input), ("output", graph.graph.output)):
        for each in values:
            tensor = each.type.tensor_type
            datatype = "TYPE_FP32" if tensor.elem_type == TensorProto.FLOAT else "TYPE_INT32"
            dims = ", ".join(str(dim.dim_value) for dim in tensor.shape.dim[1:])
            parts.append(f'{side} {{ name: "{each.name}" data_type: {datatype} dims: [ {dims} ] }}')
    return "\n".join(parts)


def _compare(
    name: str, what: str, bench: Bench, chosen: Trial, others: Sequence[Trial], seconds: float, figures: Figures
) -> float:
    """Note the ratios over the best of other trials, and return that of the requests/s."""
    for other in others:
        bench.trials[other.candidate] = other
    # Anew, and at several loads, because what was best in a short measurement is so by chance, too.
    bench.turns.clear()
    bench.sweep(chosen.candidate, seconds)
    ways = dict.fromkeys([chosen.candidate, *(other.candidate for other in others)])
    bench.race(list(ways), time.monotonic() + _CHOSEN_S, _ROUNDS)
    best = bench.ranked([other.candidate for other in others])[0].candidate
    # The best of several is so by luck, too: what it was then does not count.
    bench.turns.clear()
    if chosen.candidate == best:
        figures.remarks.append(f"{name}: the search's choice is {what}.")
        return 1.0
    bench.race([best, chosen.candidate], time.monotonic() + _COMPARED_S, _ROUNDS)
    found = bench.gained(best, chosen.candidate)
    for each in found:
        figures.remarks.append(
            f"{name}, {each.what} of the search's choice over {what}, {best.text}, in turns: {each.text}: "
            f"{each.verdict}."
        )
    return found[0].ratio if found else math.nan


def main(arguments: Sequence[str]) -> None:
    parser = Program("tuning", __doc__)
    parser.add_argument("--only", type=names_among(list(_MODELS)), default=list(_MODELS), help=", ".join(_MODELS))
    parser.add_argument("--p99", type=float, default=20.0, help="milliseconds; default 20")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each level of the grid; default 0.4")
    parser.add_argument(
        "--limit", type=float, default=1800.0, help="seconds, within which a model must end; default 1800"
    )
    options, publication, figures = parser.begin(arguments)
    with tempfile.TemporaryDirectory() as folder:
        began, longest = time.monotonic(), 0.0
        for name in options.only:
            at = time.monotonic()
            if at - began + longest > options.limit:
                figures.remarks.append(f"{name}: not measured, because --limit left no time for it.")
                continue
            measure(name, Path(folder), options.p99, options.seconds, figures)
            longest = max(longest, time.monotonic() - at)
    figures.publish(publication, "-tuning")
