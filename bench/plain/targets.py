"""What the server has to reach beside the Flask server and the bare loop of the same run."""

from __future__ import annotations

from collections.abc import Iterator

from bench.plain.results import Results
from bench.target import Target

GROWTH_MB = 2.0
MEMORY_ABOVE_BARE_MB = 80.0


def targets(results: Results) -> list[Target]:
    """All targets in the order of the cases, including those that this run did not measure."""
    found = [*_add_sub(results, "a-json"), *_add_sub(results, "a-binary")]
    found += [_faster(results, "b", connections, 3) for connections in (1, 16, 64)]
    found += [_faster(results, case, connections, 10) for case in ("c-mean", "c-echo") for connections in (1, 16, 64)]
    found += [_faster(results, case, connections, 5) for case in ("d-json", "d-binary") for connections in (16, 64)]
    return [*found, _compute_bound(results), *_memory(results)]


def _add_sub(results: Results, case: str) -> Iterator[Target]:
    yield _faster(results, case, 16, 5)
    yield _faster(results, case, 64, 5)
    own = _cpu(results, case, 16)
    yield Target(case, "CPU per request over Flask's, 16", 0.22, False, _ratio(own, _cpu(results, case, 16, "flask")))
    empty = _cpu(results, "empty", 16, "own worker")
    yield Target(case, "CPU per request over an empty GET's, 16", 4.5, False, _ratio(own, empty))
    cell = results.cell(case, 64)
    yield Target(case, "p99 over p50, 64", 4, False, _ratio(cell.p99_ms, cell.p50_ms) if cell else None)
    yield Target(case, "errors, 64", 0, False, cell.errors if cell else None)


def _compute_bound(results: Results) -> Target:
    bare = results.bare.inferences_per_second if results.bare else None
    return Target("e", "inferences/s over the bare loop's, 16", 0.95, True, _ratio(_rate(results, "e", 16), bare))


def _memory(results: Results) -> Iterator[Target]:
    for growth in results.growths:
        grown = growth.after_mb - growth.before_mb
        yield Target("memory", f"MB grown in {growth.requests:,} requests of {growth.case}", GROWTH_MB, False, grown)
    own, bare = results.loaded_mb.get("trident"), results.loaded_mb.get("bare loop")
    above = own - bare if own is not None and bare is not None else None
    yield Target("memory", "MB above the bare loop's, same models", MEMORY_ABOVE_BARE_MB, False, above)


def _faster(results: Results, case: str, connections: int, goal: float) -> Target:
    measured = _ratio(_rate(results, case, connections), _rate(results, case, connections, "flask"))
    return Target(case, f"requests/s over Flask's, {connections} connections", goal, True, measured)


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _rate(results: Results, case: str, connections: int, server: str = "trident") -> float | None:
    cell = results.cell(case, connections, server)
    return cell.requests_per_second if cell else None


def _cpu(results: Results, case: str, connections: int, server: str = "trident") -> float | None:
    cell = results.cell(case, connections, server)
    return cell.cpu_us if cell else None
