"""Output for a person at a terminal: the log of a start, tables, and a line of progress.

Source: docs/spec/server-options.md section 4, docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import logging
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

from trident.adapters.common.options import spell_endpoint
from trident.app.settings.server import DEFAULT, ServerSettings
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.sample_request import TOKEN, Place, curl, make_sample, write_request
from trident.core.lifecycle.state import DownloadPhase, VersionOverview
from trident.core.observability import log as console
from trident.core.observability.log import escaped, log_command, log_table, stderr, width

if TYPE_CHECKING:
    from trident.core.repository.progress import DownloadProgress


_log = logging.getLogger("trident.server")
_EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]", ""})
_LONGEST_REQUEST = 1000
_OPTION = ("Option", "Value", "From")


def log_settings(settings: ServerSettings) -> None:
    """Log the options that are not at their defaults, and the settings of the platforms."""
    given = [row for row in settings.describe() if row.source != DEFAULT]
    log_table(_log, "options that are not at their defaults", table(_OPTION, given))
    for platform, own in settings.open_platforms.items():
        if rows := own.describe():
            log_table(_log, f"{platform.title}'s settings", table(_OPTION, rows))


class ModelRow(NamedTuple):
    """One version of a model at startup; unknown fields are empty."""

    model: str
    version: str
    state: str
    device: str = ""
    execution_provider: str = ""
    reason: str = ""


def model_row(line: VersionOverview) -> ModelRow:
    entry = line.entry
    return ModelRow(
        entry.name,
        "" if entry.version is None else str(entry.version),
        "" if entry.state is None else entry.state.value,
        line.device,
        line.execution_provider,
        entry.reason,
    )


def log_models(rows: Sequence[ModelRow]) -> None:
    """Log the models, and below them why some do not serve: their reasons would be the widest column."""
    width = console.width()
    lines = [table(("Model", "Version", "State", "Device", "Execution provider"), [row[:5] for row in rows], width)]
    for row in rows:
        for index, line in enumerate(_lines(row.reason) if row.reason else ()):
            start = f"| {escaped(row.model)} {row.version}".rstrip() + ": " if not index else "|   "
            lines += textwrap.wrap(line, width, initial_indent=start, subsequent_indent="|   ", break_on_hyphens=False)
    log_table(_log, "models", "\n".join(lines))


def log_services(settings: ServerSettings) -> None:
    services = settings.services()
    addresses = [(name[0].upper() + name[1:], spell_endpoint(*each[:2])) for name, each in services.items()]
    log_table(_log, "addresses", table(("Service", "Address"), addresses))
    for each in services.values():
        _log.info("Started %s at %s", each.started, spell_endpoint(each.address, each.port))


def log_first_request(settings: ServerSettings, specs: Iterable[ModelSpec]) -> None:
    """Log where the server serves, with the shortest request to one of the ready models in `specs`, to be copied."""
    if not settings.allow_http:
        return
    host = "localhost" if settings.http_address in _EVERYWHERE else settings.http_address
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    url = f"{'https' if settings.http_use_ssl else 'http'}://{spell_endpoint(host, settings.http_port)}"
    headers = [TOKEN] if settings.auth_token_file else []
    place = Place(url=url, headers=headers, trusted=not settings.http_use_ssl)
    command = min(filter(None, (_first_request(spec, place) for spec in specs)), key=len, default="")
    log_command(_log, f"Serving at {url}. To try it:", command or curl(place, "/v2"))
    if settings.console:
        log_command(_log, "The console, for a browser:", f"{url}/console")


def _first_request(spec: ModelSpec, place: Place) -> str:
    """One line, or "" for a model whose requests are long or binary."""
    try:
        text = write_request(make_sample(spec), "curl", place)
    except InvalidRequest:
        return ""
    return text if "\n" not in text and len(text) < _LONGEST_REQUEST else ""


# --- tables
_NARROWEST = 6


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None) -> str:
    """A text table, without a final line break, of at most `width` columns; None: those of the terminal.

    Long cells are wrapped, at blanks where there are some, and keep their line breaks. Every line begins with `|` or
    `+` and contains no control character, whatever is in the cells.
    """
    cells = [[_lines(cell) for cell in row] for row in (headings, *rows)]
    natural = [max(len(line) for row in cells for line in row[column]) for column in range(len(headings))]
    room = (console.width() if width is None else width) - 3 * len(headings) - 1
    widths = list(natural)
    while sum(widths) > room and max(widths) > _NARROWEST:  # the widest shrink, as far as a column can be read
        widths[widths.index(max(widths))] -= 1
    wrapped = [
        [
            [part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]
            for lines, width in zip(row, widths, strict=True)
        ]
        for row in cells
    ]
    # A cell that is wrapped at blanks may need less than its share.
    widths = [max(len(line) for row in wrapped for line in row[column]) for column in range(len(headings))]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head, *body = (_row(row, widths) for row in wrapped)
    return "\n".join([border, *head, border, *(line for row in body for line in row), border])


def _lines(cell: str) -> list[str]:
    return [escaped(line) for line in cell.rstrip("\n").split("\n")]


def _row(cells: Sequence[list[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(lines) for lines in cells)
    padded = [lines + [""] * (height - len(lines)) for lines in cells]
    return [
        "| " + " | ".join(lines[at].ljust(width) for lines, width in zip(padded, widths, strict=True)) + " |"
        for at in range(height)
    ]


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- one line that is overwritten: a text, or a bar of downloads
_CLEAR = "\r\033[K"


class StatusLine:
    """Draws on `stream`, by default stderr, if it is a terminal. Otherwise writes a line each `every_s` seconds; with
    None it does nothing. One thread."""

    def __init__(self, stream: TextIO | None = None, *, every_s: float | None = None) -> None:
        self._stream = stream or stderr()
        self._enabled = self._stream.isatty()
        self._drawn = False
        self._every_s = every_s
        self._next = 0.0

    def show(self, text: str) -> None:
        if not self._enabled:
            if self._every_s is not None and time.monotonic() >= self._next:
                self._next = time.monotonic() + self._every_s
                self._stream.write(f"{escaped(text)}\n")
                self._stream.flush()
        else:
            # The cursor returns to the start of the line, so that a log line overwrites it.
            self._stream.write(f"{_CLEAR}{escaped(text)[: width() - 1]}\r")
            self._stream.flush()
            self._drawn = True

    def show_download(self, download: DownloadPhase | None) -> None:
        if download:
            self.show(bar(download))
        else:
            self.clear()

    def clear(self) -> None:
        if self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._drawn = False


_WIDTH = 30


def bar(download: DownloadPhase) -> str:
    share = download.bytes_done / download.bytes_total if download.bytes_total else 0.0
    filled = round(share * _WIDTH)
    rate = download.bytes_done / download.seconds if download.seconds else 0.0
    return (
        f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}  "
        f"{download.bytes_done / 1e6:.0f} of {download.bytes_total / 1e6:.0f} MB, "
        f"{download.objects_done} of {download.objects_total} objects, {rate / 1e6:.0f} MB/s"
    )


_REDRAW_S = 0.2


@contextmanager
def drawn(progress: DownloadProgress) -> Iterator[None]:
    """Draw `progress` on stderr, if that is a terminal, while the context lasts."""
    ended = threading.Event()
    line = StatusLine()

    def draw() -> None:
        while not ended.wait(_REDRAW_S):
            line.show_download(DownloadPhase.of(progress.snapshot()))
        line.clear()

    thread = threading.Thread(target=draw, name="download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
