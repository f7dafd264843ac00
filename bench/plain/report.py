"""The tables: printed, written beside the JSON, and put into README between its two marks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.cases import CASES
from bench.plain.measure import Cell
from bench.plain.results import Results
from bench.plain.targets import Target, targets

TITLES = {case.key: case.title for case in CASES} | {"empty": "empty GET"}
MARKS = ("<!-- bench: begin -->", "<!-- bench: end -->")
VERDICTS = {True: "yes", False: "**no**", None: "not measured"}


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the columns are padded, so that it reads well in a terminal too."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def number(value: float) -> str:
    """Three significant digits or so, thousands with commas."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell_row(cell: Cell) -> list[str]:
    batch = f"{cell.mean_batch:.1f}" if cell.mean_batch else ""
    figures = [cell.requests_per_second, cell.p50_ms, cell.p99_ms, cell.cpu_us]
    return [
        TITLES[cell.case],
        str(cell.connections),
        cell.server,
        *map(number, figures),
        batch,
        str(cell.errors),
        f"{cell.resident_mb:,.0f}",
    ]


def cells_table(results: Results) -> str:
    header = ["case", "connections", "server", "requests/s", "p50 ms", "p99 ms"]
    header += ["CPU µs/request", "mean batch", "errors", "MB"]
    return table(header, [cell_row(cell) for cell in results.cells])


def target_row(target: Target) -> list[str]:
    goal = f"{'≥' if target.at_least else '≤'} {target.goal:g}"
    measured = "" if target.measured is None else f"{target.measured:.2f}"
    return [target.case, target.what, goal, measured, VERDICTS[target.reached]]


def targets_table(results: Results) -> str:
    return table(["case", "what", "to reach", "measured", "reached"], [target_row(each) for each in targets(results)])


def machine_text(results: Results) -> str:
    about = results.machine
    packages = about["packages"]
    versions = (
        ", ".join(f"{name} {version}" for name, version in packages.items()) if isinstance(packages, dict) else ""
    )
    return (
        f"{results.date}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, "
        f"Linux {about['kernel']}, Python {about['python']}; {versions}. "
        "Server and load generator (`wrk`, one thread) share the cores; a cell is the median of "
        f"{results.rounds} rounds of {results.seconds} s, the servers in turn; slow cases take longer."
    )


def bare_text(results: Results) -> str:
    lines = []
    if results.bare:
        bare = results.bare
        lines.append(
            f"The bare `session.run` loop of the compute-bound graph: {bare.inferences_per_second:.1f} inferences/s, "
            f"best at batch size {bare.batch} with {bare.threads} threads."
        )
    if results.loaded_mb:
        sizes = ", ".join(f"{name} {size:,.0f} MB" for name, size in results.loaded_mb.items())
        lines.append(f"Resident memory with all models loaded and run once: {sizes}.")
    return " ".join(lines)


def markdown(results: Results) -> str:
    parts = [machine_text(results), cells_table(results), bare_text(results), targets_table(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def brief(results: Results, full: str) -> str:
    """What README carries: a row for each case and server. `full` is the path of the page with all figures."""
    servers = sorted({(cell.case, cell.server) for cell in results.cells}, key=_place(results))
    counts = sorted({cell.connections for cell in results.cells})
    header = ["case", "server", *(f"requests/s, {count} conn." for count in counts)]
    header += [f"p99 ms, {counts[-1]} conn.", f"CPU µs/request, {counts[-1]} conn."]
    rows = []
    for case, server in servers:
        cells = {cell.connections: cell for cell in results.cells if (cell.case, cell.server) == (case, server)}
        last = cells.get(counts[-1])
        figures = [cells[count].requests_per_second if count in cells else None for count in counts]
        figures += [last.p99_ms, last.cpu_us] if last else [None, None]
        rows.append([TITLES[case], server, *("" if figure is None else number(figure) for figure in figures)])
    more = f"All figures of this run, and what was to be reached: [{full}]({full})."
    return "\n\n".join([machine_text(results), table(header, rows), bare_text(results), more]) + "\n"


def _place(results: Results) -> Callable[[tuple[str, str]], int]:
    """Where a case's server first stands among the cells."""
    order = [(cell.case, cell.server) for cell in results.cells]
    return order.index


def update_readme(readme: Path, text: str) -> None:
    """Put `text` between the marks. ValueError if they are not there."""
    before, _, rest = readme.read_text().partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    if not mark:
        raise ValueError(f"{readme} lacks the marks {MARKS[0]} and {MARKS[1]}")
    readme.write_text(f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}")
