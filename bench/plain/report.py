"""The tables of the plain benchmark: printed, written beside the JSON, and put into README between its two marks."""

from __future__ import annotations

from collections.abc import Callable

from bench.cases import CASES
from bench.plain.measure import Cell
from bench.plain.results import Results
from bench.plain.targets import targets
from bench.publication import machine_sentence
from bench.tables import number, table
from bench.target import TARGET_HEADER

TITLES = {case.key: case.title for case in CASES} | {"empty": "empty GET"}
MARKS = ("<!-- bench: begin -->", "<!-- bench: end -->")


def markdown(results: Results) -> str:
    """The page with all figures of a run."""
    parts = [machine_text(results), cells_table(results), bare_text(results)]
    parts.append(table(TARGET_HEADER, [target.row() for target in targets(results)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def brief(results: Results, full: str) -> str:
    """The text for README: a row for each case and server. `full` is the path of the page with all figures."""
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
    more = f"All figures of this run, and its targets: [{full}]({full})."
    return "\n\n".join([machine_text(results), table(header, rows), bare_text(results), more]) + "\n"


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
        f"{machine_sentence(results.seen)}"
    )


def cells_table(results: Results) -> str:
    header = ["case", "connections", "server", "requests/s", "p50 ms", "p99 ms"]
    header += ["CPU µs/request", "mean batch", "errors", "MB"]
    return table(header, [cell_row(cell) for cell in results.cells])


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


def _place(results: Results) -> Callable[[tuple[str, str]], int]:
    """The position at which a case's server first stands among the cells."""
    order = [(cell.case, cell.server) for cell in results.cells]
    return order.index
