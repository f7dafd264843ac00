"""The page of a measurement: one HTML file with its plots and tables, which loads nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trident.tools.bench.measure import HEADINGS, Difference, Level, knee, number, remarks, row

# Colours that are told apart by most readers, for a light and for a dark ground.
_COLOURS = (
    ("#2563b0", "#6aa9f0"),
    ("#c2571a", "#f09a5e"),
    ("#26805a", "#58c594"),
    ("#8a4fa3", "#c792dd"),
    ("#8c8c8c", "#9a9a9a"),
)
_LIGHT, _DARK = ("".join(f".s{at}{{--c:{pair[way]}}}" for at, pair in enumerate(_COLOURS)) for way in (0, 1))
STYLE = f"""
:root{{--ink:#1c2128;--faint:#6a737d;--line:#dfe3e8;--ground:#fff}}{_LIGHT}
@media(prefers-color-scheme:dark){{:root{{--ink:#e6e9ed;--faint:#9aa4af;--line:#333a42;--ground:#15191e}}{_DARK}}}
.plot{{font:12px system-ui,sans-serif;fill:var(--ink)}}.plot .faint{{fill:var(--faint)}}
.plot .title{{font-weight:600;font-size:13px}}.plot .grid{{stroke:var(--line)}}.plot .fill{{fill:var(--c)}}
.plot .path{{fill:none;stroke:var(--c);stroke-width:2}}.plot .spread{{stroke:var(--c);stroke-width:1.5;opacity:.6}}
.plot .value{{fill:var(--faint);stroke:var(--ground);stroke-width:4;paint-order:stroke}}
.plot .mark{{fill:none;stroke:var(--ink);stroke-width:1.5}}.plot .limit{{stroke:var(--ink);stroke-dasharray:4 4}}
"""
_STYLE = f"""{STYLE}
body{{margin:2rem auto;max-width:84rem;padding:0 1rem;font:15px/1.5 system-ui,sans-serif;background:var(--ground);
color:var(--ink)}}
h1{{font-size:1.5rem;margin:0}}h2{{font-size:1.1rem;margin:2rem 0 .5rem}}p{{max-width:52rem}}
.faint{{color:var(--faint)}}
.plots>div{{max-width:46rem}}
.plots{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(30rem,100%),1fr));gap:1.5rem}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}
td,th{{padding:.25rem .75rem;text-align:right;border-bottom:1px solid var(--line)}}
td:first-child,th:first-child{{text-align:left}}th{{color:var(--faint);font-weight:500}}
.wide{{overflow-x:auto}}pre{{overflow-x:auto;padding:1rem;border:1px solid var(--line)}}
"""
TIMES = ("in queue", "input", "model", "output", "network, HTTP, client")


def page(title: str, about: Sequence[str], sections: Sequence[tuple[str, str]]) -> str:
    """`about` are lines of text, the sections headings with HTML."""
    body = "".join(f"<h2>{escape(heading)}</h2>{html}" for heading, html in sections)
    said = "".join(f'<p class="faint">{escape(line)}</p>' for line in about if line)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{said}{body}</body></html>\n"
    )


def grid(plots: Sequence[str]) -> str:
    return f'<div class="plots">{"".join(f"<div>{plot}</div>" for plot in plots if plot)}</div>'


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def level_sections(sides: Sequence[tuple[str, Sequence[Level]]], percentile: str) -> list[tuple[str, str]]:
    """The plots of one server or of several, and the tables."""
    answered = [(name, [level for level in levels if level.requests]) for name, levels in sides]
    shown = [(name, levels) for name, levels in answered if levels]
    sections = []
    if shown:
        _, levels = shown[-1]
        place = knee(levels)
        chosen = levels[place] if place is not None else levels[-1]
        plots = [_frontier(shown, percentile), *(_times(name, levels, len(shown) > 1) for name, levels in shown)]
        plots += [_over_time(chosen), _batches(chosen)]
        sections.append(("Plots", grid(plots)))
    for name, given in sides:
        found = html_table(HEADINGS, [row(level) for level in given])
        found += "".join(f"<p>{escape(each)}</p>" for each in remarks(given))
        sections.append((f"Levels{f': {name}' if len(sides) > 1 else ''}", found))
    return sections


def _frontier(sides: Sequence[tuple[str, Sequence[Level]]], percentile: str) -> str:
    def points(levels: Sequence[Level], name: str) -> list[Point]:
        best = knee(levels)
        return [
            Point(
                level.rate,
                level.percentiles[name],
                level.name if name == "50" or len(sides) > 1 else "",
                f"{level.name}: {number(level.rate)} requests/s, p{name} {number(level.percentiles[name])} ms",
                *level.rate_interval,
                marked=at == best,
            )
            for at, level in enumerate(levels)
        ]

    if len(sides) > 1:
        series = [(name, points(levels, percentile)) for name, levels in sides]
    else:
        series = [(f"p{name}", points(sides[0][1], name)) for name in ("50", "90", "99")]
    return lines("Latency over throughput; the ring is the knee", series, x="requests/s", y="ms")


def _times(name: str, levels: Sequence[Level], is_one_of_several: bool) -> str:
    """The parts of a request's time, by the server's own statistics."""
    columns = []
    for level in levels:
        if (times := level.server) is not None:
            columns.append((level.name, [*times.parts, max(0.0, level.mean - sum(times.parts))]))
    title = f"Where the time of a request goes{f': {name}' if is_one_of_several else ''}"
    return bars(title, TIMES, columns, x="", y="mean ms") if columns else ""


def _over_time(level: Level) -> str:
    series = [
        (
            name,
            [
                Point(part[0], part[at], about=f"{part[0]:.1f} s: {number(part[at])} ms")
                for part in level.slices
                if part[1]
            ],
        )
        for at, name in ((2, "p50"), (3, "p90"), (4, "p99"))
    ]
    return lines(f"Percentiles over time at {level.load}", series, x="seconds", y="ms")


def _batches(level: Level) -> str:
    if level.server is None or not level.server.batches:
        return ""
    columns = [(size, [float(count)]) for size, count in level.server.batches.items()]
    return bars(f"Executions by the size of their batch at {level.load}", ("executions",), columns, x="batch", y="")


def differences_table(rows: Sequence[tuple[str, Difference]]) -> str:
    cells = [(load, each.what, each.text, each.verdict) for load, each in rows]
    return html_table(("load", "figure", "second over first [95 %]", ""), cells)


# --- plots as SVG: lines and stacked bars. Points and bars tell their figures when a pointer rests on them
WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, TOP, _BOTTOM = 64, 20, 40, 48
_TICKS = 5
# Points of a line that is longer than this would hide it.
_MOST_DOTS = 60


@dataclass(frozen=True, slots=True)
class Point:
    """`label` stands beside the point, `about` is shown by a pointer on it. `low` and `high` are the ends of its x."""

    x: float
    y: float
    label: str = ""
    about: str = ""
    low: float | None = None
    high: float | None = None
    marked: bool = False


def lines(
    title: str,
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    x: str,
    y: str,
    limit: float | None = None,
    joined: bool = True,
) -> str:
    """Points of several series, joined in their order. `limit` is a value of y that is drawn across."""
    points = [point for _, each in series for point in each if math.isfinite(point.x + point.y)]
    right = _round_up(max((each.x for each in points), default=1.0))
    # A limit that is far above all points would flatten them.
    top = max((each.y for each in points), default=1.0)
    top = _round_up(max(top, limit) if limit is not None and limit < 3 * top else top)

    def place(point_x: float, point_y: float) -> tuple[float, float]:
        width, height = WIDTH - _LEFT - _RIGHT, _HEIGHT - TOP - _BOTTOM
        return _LEFT + width * point_x / right, TOP + height * (1 - point_y / top)

    parts = [_axes(title, x, y, top)]
    for at in range(_TICKS + 1):
        value = right * at / _TICKS
        parts.append(text(place(value, 0)[0], _HEIGHT - _BOTTOM + 16, short(value), "middle", "faint"))
    if limit is not None and limit <= top:
        height = place(0, limit)[1]
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
    for at, (_, given) in enumerate(series):
        shown = [each for each in given if math.isfinite(each.x + each.y)]
        places = [place(each.x, each.y) for each in shown]
        parts.append(f'<g class="s{at % len(_COLOURS)}">')
        if joined:
            parts.append(f'<polyline class="path" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}"/>')
        for each, (a, b) in zip(shown, places, strict=True):
            if each.low is not None and each.high is not None:
                low, high = place(max(0.0, each.low), 0)[0], place(min(each.high, right), 0)[0]
                parts.append(f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{b:.1f}" y2="{b:.1f}"/>')
            about = f"<title>{escape(each.about)}</title>" if each.about else ""
            if len(shown) <= _MOST_DOTS:
                parts.append(f'<circle class="fill" cx="{a:.1f}" cy="{b:.1f}" r="3.5">{about}</circle>')
            if each.marked:
                parts.append(f'<circle class="mark" cx="{a:.1f}" cy="{b:.1f}" r="7"/>')
            if each.label:
                parts.append(text(a, b - 10, each.label, "middle", ""))
        parts.append("</g>")
    return svg(title, [*parts, _legend([name for name, _ in series])])


def bars(title: str, series: Sequence[str], columns: Sequence[tuple[str, Sequence[float]]], *, x: str, y: str) -> str:
    """A bar for each column, whose values are stacked in the order of `series`."""
    top = _round_up(max((sum(values) for _, values in columns), default=1.0))
    width = (WIDTH - _LEFT - _RIGHT) / max(1, len(columns))
    height = _HEIGHT - TOP - _BOTTOM
    every = -(-len(columns) // 16)
    parts = [_axes(title, x, y, top)]
    for at, (name, values) in enumerate(columns):
        left, below = _LEFT + width * (at + 0.15), float(_HEIGHT - _BOTTOM)
        for part, value in enumerate(values):
            tall = height * value / top
            below -= tall
            about = escape(f"{name}: {series[part]} {short(value)}")
            parts.append(
                f'<rect class="s{part % len(_COLOURS)} fill" x="{left:.1f}" y="{below:.1f}" width="{width * 0.7:.1f}" '
                f'height="{tall:.1f}"><title>{about}</title></rect>'
            )
        if at % every == 0:
            parts.append(text(left + width * 0.35, _HEIGHT - _BOTTOM + 16, name, "middle", "faint"))
    return svg(title, [*parts, _legend(series)])


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _round_up(value: float) -> float:
    """A little more than `value`, so that the ticks are short numbers."""
    if value <= 0:
        return 1.0
    unit: float = 10.0 ** math.floor(math.log10(value))
    return (
        next(step for step in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0) if step * unit >= value * 1.02)
        * unit
    )


def _axes(title: str, x: str, y: str, top: float) -> str:
    parts = [text(_LEFT, 16, title, "start", "title"), text(WIDTH - _RIGHT, _HEIGHT - 10, x, "end", "faint")]
    parts.append(text(_LEFT - 8, TOP - 10, y, "end", "faint"))
    for at in range(_TICKS + 1):
        height = TOP + (_HEIGHT - TOP - _BOTTOM) * (1 - at / _TICKS)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(text(_LEFT - 8, height + 4, short(top * at / _TICKS), "end", "faint"))
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    parts, left = [], float(_LEFT)
    for at, name in enumerate(names):
        parts.append(
            f'<rect class="s{at % len(_COLOURS)} fill" x="{left:.0f}" y="{_HEIGHT - 19}" width="10" height="10"/>'
        )
        parts.append(text(left + 14, _HEIGHT - 10, name, "start", ""))
        left += 30 + 6.8 * len(name)
    return "".join(parts)


def text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg(title: str, parts: Sequence[str], height: int = _HEIGHT) -> str:
    head = f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    return head + "".join(parts) + "</svg>"
