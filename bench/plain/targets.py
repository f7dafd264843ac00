"""What the server has to reach beside the Flask server and the bare loop of the same run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.plain.results import Results

GROWTH_MB = 2.0
MEMORY_ABOVE_BARE_MB = 80.0

Measured = tuple[str, float | None]


@dataclass(frozen=True, slots=True)
class Target:
    """`measured` is None where a cell is missing from the run."""

    case: str
    what: str
    goal: float
    at_least: bool
    measured: float | None

    @property
    def reached(self) -> bool | None:
        if self.measured is None:
            return None
        compare: Callable[[float, float], bool] = operator.ge if self.at_least else operator.le
        return compare(self.measured, self.goal)


def ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def rate(results: Results, case: str, connections: int, server: str = "trident") -> float | None:
    cell = results.cell(case, connections, server)
    return cell.requests_per_second if cell else None


def cpu(results: Results, case: str, connections: int, server: str = "trident") -> float | None:
    cell = results.cell(case, connections, server)
    return cell.cpu_us if cell else None


def faster(results: Results, case: str, connections: int, goal: float) -> Target:
    measured = ratio(rate(results, case, connections), rate(results, case, connections, "flask"))
    return Target(case, f"requests/s over Flask's, {connections} connections", goal, True, measured)


def add_sub(results: Results, case: str) -> Iterator[Target]:
    yield faster(results, case, 16, 5)
    yield faster(results, case, 64, 5)
    own = cpu(results, case, 16)
    yield Target(case, "CPU per request over Flask's, 16", 0.22, False, ratio(own, cpu(results, case, 16, "flask")))
    yield Target(
        case, "CPU per request over an empty GET's, 16", 4.5, False, ratio(own, cpu(results, "empty", 16, "own worker"))
    )
    cell = results.cell(case, 64)
    yield Target(case, "p99 over p50, 64", 4, False, ratio(cell.p99_ms, cell.p50_ms) if cell else None)
    yield Target(case, "errors, 64", 0, False, cell.errors if cell else None)


def compute_bound(results: Results) -> Target:
    bare = results.bare.inferences_per_second if results.bare else None
    return Target("e", "inferences/s over the bare loop's, 16", 0.95, True, ratio(rate(results, "e", 16), bare))


def memory(results: Results) -> Iterator[Target]:
    for growth in results.growths:
        grown = growth.after_mb - growth.before_mb
        yield Target("memory", f"MB grown in {growth.requests:,} requests of {growth.case}", GROWTH_MB, False, grown)
    own, bare = results.loaded_mb.get("trident"), results.loaded_mb.get("bare loop")
    above = own - bare if own is not None and bare is not None else None
    yield Target("memory", "MB above the bare loop's, same models", MEMORY_ABOVE_BARE_MB, False, above)


def targets(results: Results) -> list[Target]:
    """All of them, in the order of the cases; those that were not measured too."""
    found = [*add_sub(results, "a-json"), *add_sub(results, "a-binary")]
    found += [faster(results, "b", connections, 3) for connections in (1, 16, 64)]
    found += [faster(results, case, connections, 10) for case in ("c-mean", "c-echo") for connections in (1, 16, 64)]
    found += [faster(results, case, connections, 5) for case in ("d-json", "d-binary") for connections in (16, 64)]
    return [*found, compute_bound(results), *memory(results)]
