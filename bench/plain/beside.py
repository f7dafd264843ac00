"""The page of a run beside another v2 server: both servers' figures of each case in one row, with their ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from bench.plain.measure import Cell
from bench.plain.report import TITLES, machine_text
from bench.plain.results import Results
from bench.tables import number, table

THIS, OTHER = "trident", "other"
_HEADER = ["case", "connections"]
_HEADER += ["requests/s, other", "Trident", "ratio", "CPU µs/request, other", "Trident", "ratio", "errors"]


def markdown(results: Results) -> str:
    pairs = [(own, other) for own in results.cells if own.server == THIS for other in [_other(results, own)] if other]
    rate, cpu = (geometric_mean([_ratio(of, *pair) for pair in pairs]) for of in (_rate, _cpu))
    return (
        "\n\n".join(
            [
                machine_text(results),
                f"The other server: `{results.beside}`. Both serve the same model repository and get the same bodies. "
                "A ratio is Trident's figure over the other's: more requests/s and less CPU per request are better. "
                "CPU is that of all processes of a server.",
                table(_HEADER, [_row(own, other) for own, other in pairs]),
                f"Geometric means of the ratios: requests/s {rate:.2f}, CPU per request {cpu:.2f}.",
            ]
        )
        + "\n"
    )


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; values that are not positive (a figure that was not measured) are left out. NaN of none."""
    logarithms = [math.log(value) for value in values if value > 0]
    return math.exp(statistics.fmean(logarithms)) if logarithms else math.nan


def _other(results: Results, own: Cell) -> Cell | None:
    return results.cell(own.case, own.connections, OTHER)


def _row(own: Cell, other: Cell) -> list[str]:
    return [
        TITLES[own.case],
        str(own.connections),
        number(other.requests_per_second),
        number(own.requests_per_second),
        f"{_ratio(_rate, own, other):.2f}",
        number(other.cpu_us),
        number(own.cpu_us),
        f"{_ratio(_cpu, own, other):.2f}",
        str(own.errors + other.errors),
    ]


def _ratio(of: Callable[[Cell], float], own: Cell, other: Cell) -> float:
    """Zero where the other server's figure is zero."""
    return of(own) / of(other) if of(other) else 0.0


def _rate(cell: Cell) -> float:
    return cell.requests_per_second


def _cpu(cell: Cell) -> float:
    return cell.cpu_us
