"""The Prometheus text format 0.0.4, as Triton's metrics page writes it.

The writer of prometheus_client appends `_total` to the name of every counter, and Triton's counters have no such
suffix: dashboards and test suites that read Triton's names would not find them.
Source: docs/spec/statistics-and-metrics.md section B; the exposition formats page of Prometheus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_LAST_LABELS = ("le", "quantile")
_ESCAPED_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPED_IN_LABELS = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a family. `suffix` follows the family's name: `_bucket`, `_sum`, `_count` of a histogram."""

    labels: Mapping[str, str]
    value: int | float
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The series of one name. `type` is counter, gauge, histogram, summary or untyped; names are written unchanged."""

    name: str
    type: str
    help: str
    samples: tuple[Sample, ...]


def render(families: Iterable[MetricFamily]) -> bytes:
    """The page in UTF-8; each line ends with a newline. A family without series is omitted."""
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: MetricFamily) -> list[str]:
    if not family.samples:
        return []
    head = [
        f"# HELP {family.name} {family.help.translate(_ESCAPED_IN_HELP)}\n",
        f"# TYPE {family.name} {family.type}\n",
    ]
    return head + [
        f"{family.name}{sample.suffix}{_label_block(sample.labels)} {number(sample.value)}\n"
        for sample in family.samples
    ]


def _label_block(labels: Mapping[str, str]) -> str:
    """`{a="1",b="2",le="5"}`, or nothing. Sorted by name, as readers match whole lines; `le` and `quantile` last."""
    if not labels:
        return ""
    names = sorted(labels, key=lambda name: (name in _LAST_LABELS, name))
    return "{" + ",".join(f'{name}="{labels[name].translate(_ESCAPED_IN_LABELS)}"' for name in names) + "}"


def number(value: int | float) -> str:
    """A value as Triton prints it: integers without decimals, fractions with at most 16 digits, `Nan`."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "Nan"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.16g}"
