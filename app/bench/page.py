"""The page of a measurement: one HTML file with its plots and tables, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trident.app.bench.measure import HEADINGS, Difference, Level, knee, number, remarks, row
from trident.app.bench.plots import STYLE, Point, bars, lines

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
    """Where the time goes, by the server's own statistics."""
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
