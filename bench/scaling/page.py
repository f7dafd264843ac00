"""The measured parts of docs/scaling.md, between markers that a run replaces.

<!-- measured: costs -->
...
<!-- end -->
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.machine_load import LoadSeen
from bench.publication import machine_sentence
from bench.scaling.heavy import HEAVY
from bench.scaling.projection import Ceiling, Costs, best_plan
from bench.scaling.seen import Seen, Shape, plural
from bench.tables import number, table
from tests.project import ROOT

PAGE = ROOT / "docs" / "scaling.md"
_BEGIN, _END = "<!-- measured: {} -->\n", "<!-- end -->"


@dataclass(slots=True)
class Measured:
    """The figures of one case. `limited` and `unlimited` are servers of one engine and of several, if measured."""

    title: str
    costs: Costs
    one: dict[Shape, Seen]
    limited: dict[Shape, Seen] = field(default_factory=dict)
    unlimited: dict[Shape, Seen] = field(default_factory=dict)


def write_page(
    cases: Sequence[Measured],
    heavy: dict[Shape, Seen],
    cores: Sequence[int],
    share: float,
    seen: LoadSeen | None,
    page: Path = PAGE,
) -> None:
    """Replace the measured parts of `page`; what was not measured stays. `seen` is the machine during the run.

    ValueError if the page lacks a marker.
    """
    parts = {}
    if cases:
        parts = {
            "costs": _costs(cases, seen),
            "bounds": _bounds(cases, cores),
            "limited": _limited(cases, share),
            "unlimited": _unlimited(cases),
            "ceiling": _ceiling(cases, machine.cores()),
        }
    if heavy:
        parts["heavy"] = _heavy(heavy, machine.cores(), seen)
    text = page.read_text()
    for name, content in parts.items():
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END)
        if not end:
            raise ValueError(f"{page} has no part '{_BEGIN.format(name).strip()}' that ends with '{_END}'")
        text = "".join((before, begin, content, "\n", end, after))
    page.write_text(text)


def _costs(cases: Sequence[Measured], seen: LoadSeen | None) -> str:
    rows = [
        [case.title, str(shape.front_ends), number(seen.costs.engine_us), number(seen.costs.front_end_us)]
        for case in cases
        for shape, seen in case.one.items()
    ]
    header = ["model", "front ends", "engine, µs a request", "front ends, µs a request"]
    about = machine.describe()
    where = f"{machine.today()}, {about['cpu']}, {about['cores']} cores, Python {about['python']}."
    return f"{where}{machine_sentence(seen)}\n\n{table(header, rows)}"


def _bounds(cases: Sequence[Measured], cores: Sequence[int]) -> str:
    rows = []
    for case in cases:
        for count in cores:
            one, best = best_plan(case.costs, count, engines=1), best_plan(case.costs, count)
            rows.append(
                [
                    case.title,
                    str(count),
                    number(one.rate),
                    one.limit,
                    f"{best.engines} + {best.front_ends}",
                    number(best.rate),
                ]
            )
    header = ["model", "cores", "one engine, requests/s", "its limit", "best engines + front ends", "requests/s"]
    ends = "; ".join(
        f"{case.title}: at {number(case.costs.one_engine_rate)} requests/s, which take "
        f"{number(case.costs.one_engine_cores)} cores"
        for case in cases
    )
    return f"{table(header, rows)}\n\n**One engine ends** ({ends})."


def _limited(cases: Sequence[Measured], share: float) -> str:
    rows = [
        [case.title, str(shape.engines), number(seen.rate), *_times(seen, one)]
        for case in cases
        for one, shape, seen in _beside_one(case.limited)
    ]
    header = ["model", "engines", "requests/s", "times one engine, median", "least and most"]
    if not rows:
        return "Not measured: no cgroup could be made for the engines."
    return f"Each engine {share:g} of a core:\n\n{table(header, rows)}"


def _unlimited(cases: Sequence[Measured]) -> str:
    rows = []
    for case in cases:
        for one, shape, seen in _beside_one(case.unlimited):
            costs_us = map(statistics.median, (seen.engine_us, seen.front_end_us, seen.client_us))
            rows.append(
                [
                    case.title,
                    str(shape.engines),
                    number(seen.rate),
                    _times(seen, one)[0],
                    *map(number, costs_us),
                    f"{seen.busy_cores:.2f}",
                ]
            )
    header = ["model", "engines", "requests/s", "times one engine", "engines, µs", "front ends, µs", "client, µs"]
    return table([*header, "cores busy"], rows)


def _ceiling(cases: Sequence[Measured], cores: int) -> str:
    """The worked example: what follows from the costs of the table before it, and what was measured."""
    sentences = []
    for case in cases:
        for one, shape, seen in _beside_one(case.unlimited):
            if seen is one:
                continue
            bound = Ceiling(cores, one.costs, statistics.median(one.client_us))
            parts = " + ".join(map(number, (bound.costs.engine_us, bound.costs.front_end_us, bound.client_us)))
            sentences.append(
                f"* {case.title}: {cores} cores / ({parts} µs) are {number(bound.rate)} requests/s, for which one "
                f"engine needs {bound.busy_engine:.2f} of a core. So {plural(shape.engines, 'engine')} can answer "
                f"{bound.times(shape.engines):.2f} times as many as one; measured were {_times(seen, one)[0]}."
            )
    return "\n".join(sentences)


def _heavy(seen: dict[Shape, Seen], cores: int, load: LoadSeen | None) -> str:
    rows = []
    for one, shape, each in _beside_one(seen):
        bound = Ceiling(cores, one.costs, statistics.median(one.client_us))
        costs_us = map(statistics.median, (each.engine_us, each.front_end_us, each.client_us))
        possible = "" if each is one else f"{bound.times(shape.engines):.2f}"
        rows.append([str(shape.engines), number(each.rate), *map(number, costs_us), *_times(each, one), possible])
    header = ["engines", "requests/s", "engines, µs", "front ends, µs", "client, µs"]
    header += ["times one engine, median", "least and most", "at most"]
    return f"{HEAVY.title}.{machine_sentence(load)}\n\n{table(header, rows)}"


def _beside_one(seen: dict[Shape, Seen]) -> list[tuple[Seen, Shape, Seen]]:
    """Each server with the one of the fewest engines."""
    shapes = sorted(seen, key=lambda shape: shape.engines)
    return [(seen[shapes[0]], shape, seen[shape]) for shape in shapes]


def _times(seen: Seen, one: Seen) -> list[str]:
    if seen is one:
        return ["1", ""]
    times = seen.times(one)
    return [f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}"]
