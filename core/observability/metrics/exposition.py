"""The text formats of the metrics page: Prometheus' 0.0.4, as Triton writes it, and OpenMetrics 1.0.

The writer of prometheus_client appends `_total` to the name of every counter, and Triton's counters have no such
suffix: dashboards and test suites that read Triton's names would not find them. OpenMetrics requires the suffix, so
there the type of such a counter is `unknown`. Only OpenMetrics has exemplars.
Source: docs/spec/statistics-and-metrics.md section B; the exposition formats page of Prometheus; OpenMetrics 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.utils import floatToGoString

from trident.core.observability.latencies import Exemplar

_TOTAL = "_total"
_LAST_LABELS = ("le", "quantile")
_ESCAPED_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPED_IN_LABELS = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a family. `suffix` follows the family's name: `_bucket`, `_sum`, `_count` of a histogram."""

    labels: Mapping[str, str]
    value: int | float
    suffix: str = ""
    exemplar: Exemplar | None = None


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The series of one name. `type` is counter, gauge, histogram, summary or untyped; names are written unchanged.

    A label `le` or `quantile` is a number as `number` writes it.
    """

    name: str
    type: str
    help: str
    samples: tuple[Sample, ...]


def render(
    families: Iterable[MetricFamily], *, openmetrics: bool = False, pause: Callable[[], None] | None = None
) -> bytes:
    """The page in UTF-8; each line ends with a newline. A family without series is omitted.

    A page in OpenMetrics is not complete: the caller appends `# EOF`. `pause` is called after each family, because a
    page of many models takes milliseconds.
    """
    write = _openmetrics_lines if openmetrics else _prometheus_lines
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines += write(family)
        if pause is not None:
            pause()
    return "".join(lines).encode()


def _prometheus_lines(family: MetricFamily) -> list[str]:
    head = [
        f"# HELP {family.name} {family.help.translate(_ESCAPED_IN_HELP)}\n",
        f"# TYPE {family.name} {family.type}\n",
    ]
    return head + [
        f"{family.name}{sample.suffix}{_label_block(sample.labels)} {number(sample.value)}\n"
        for sample in family.samples
    ]


def _openmetrics_lines(family: MetricFamily) -> list[str]:
    name, kind = family.name.removesuffix(_TOTAL), family.type
    if kind == "untyped" or (kind == "counter" and name == family.name):
        name, kind = family.name, "unknown"
    head = [f"# HELP {name} {family.help.translate(_ESCAPED_IN_LABELS)}\n", f"# TYPE {name} {kind}\n"]
    return head + [
        f"{family.name}{sample.suffix}{_label_block(_canonical(sample.labels))} {_openmetrics_number(sample.value)}"
        f"{_exemplar_text(sample.exemplar)}\n"
        for sample in family.samples
    ]


def _label_block(labels: Mapping[str, str]) -> str:
    """`{a="1",b="2",le="5"}`, or nothing. Sorted by name, as readers match whole lines; `le` and `quantile` last."""
    return _block_of(tuple(labels.items())) if labels else ""


# The labels of a series are the same on every page.
@lru_cache(maxsize=8192)
def _block_of(labels: tuple[tuple[str, str], ...]) -> str:
    texts = dict(labels)
    names = sorted(texts, key=lambda name: (name in _LAST_LABELS, name))
    return "{" + ",".join(f'{name}="{texts[name].translate(_ESCAPED_IN_LABELS)}"' for name in names) + "}"


def _canonical(labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels with their bounds and quantiles as OpenMetrics has them, with a decimal point: `le="100.0"`."""
    found = [name for name in _LAST_LABELS if name in labels]
    if not found:
        return labels
    return {**labels, **{name: _with_point(labels[name]) for name in found}}


def _with_point(text: str) -> str:
    written: str = floatToGoString(text)  # type: ignore[no-untyped-call]
    return written


def _openmetrics_number(value: int | float) -> str:
    return "NaN" if math.isnan(value) else number(value)


def _exemplar_text(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    labels = _label_block({"request_id": exemplar.request_id})
    return f" # {labels} {number(exemplar.value)} {exemplar.timestamp:.3f}"


def number(value: int | float) -> str:
    """A value as Triton prints it: integers without decimals, fractions with at most 16 digits, `Nan`."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "Nan"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.16g}"
