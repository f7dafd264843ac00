"""`trident bench`: a load on a server of the v2 protocol, its table, and the files with all figures and plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trident.adapters.common.options import (
    FILE,
    SWITCH,
    TEXT,
    BadOption,
    BadValue,
    Kind,
    Option,
    choice,
    integer,
    number,
)
from trident.app.process.environment import process_environment
from trident.app.terminal import StatusLine, table
from trident.core.backends.cpu_budget import available_cores
from trident.core.config.golden import FLOATING, Tolerance
from trident.core.config.spec import ModelSpec
from trident.core.http.sample_request import parse_shape
from trident.core.observability.log import say
from trident.tools.ask import DEFAULT_URL, with_scheme
from trident.tools.ask import TOKEN as TOKEN_VARIABLE
from trident.tools.bench.client import LoadClient
from trident.tools.bench.measure import (
    HEADINGS,
    PERCENTILES,
    Difference,
    Level,
    Server,
    differences,
    knee,
    measure,
    perf_analyzer_csv,
    pooled,
    remarks,
    row,
    started,
)
from trident.tools.bench.measure import number as figure
from trident.tools.bench.page import differences_table, level_sections, page
from trident.tools.bench.requests import PLATFORMS, Encoding, make_inputs, make_target
from trident.tools.options import read_values

_FORMAT = "trident-bench-1"
_MOST_CONCURRENCY, _MOST_LEVELS = 512, 1000
# A sweep ends when twice in a row a doubling gained less.
_GAIN = 1.05
# Of each of two servers, a fifth of the interval long.
_TURNS = 20
_WARM_UP_SHARE, _LONGEST_WARM_UP = 0.2, 1.0


def _range(text: str) -> tuple[float, ...]:
    """START:END:STEP as perf_analyzer has it; END and STEP may be missing."""
    try:
        given = [float(part) for part in text.split(":")]
        start, end, step = (*given, *(given[0], 1.0)[len(given) - 1 :])
        levels = int((end - start) / step + 1e-9) + 1
    except (ValueError, ArithmeticError):
        start, step, levels = 0.0, 0.0, 0
    if not (start > 0 and step > 0 and 0 < levels <= _MOST_LEVELS):
        raise BadValue(f"expected START:END:STEP of at most {_MOST_LEVELS} levels above 0, got {text[:64]}")
    return tuple(start + step * at for at in range(levels))


def _speed(text: str) -> float:
    speed = number(0).parse(text)
    if not speed:
        raise BadValue("expected a number above 0")
    return speed


def _tolerance(text: str) -> Tolerance:
    absolute, _, relative = text.partition(":")
    return Tolerance(number(0).parse(absolute), number(0).parse(relative or "0"))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or "\n" in text or "\r" in text:
        raise BadValue(f"expected NAME: VALUE, got {text[:64]}")
    return name.strip(), value.strip()


_own = Option.of_command
_RANGE = Kind("START:END:STEP", _range)
_PERCENTILE = choice("percentile", *map(str, PERCENTILES))
_FORMAT_KIND = choice("input-tensor-format", "binary", "json")
_INPUTS = (
    "random or zero; or a JSON file with a v2 request, a golden one, or perf_analyzer's data; or a folder of such "
    "files, or of bytes named as inputs. Default random."
)
_RATES = "Requests sent in a second; a latency counts from the time at which its request should have left."
OPTIONS = {
    each.flag: each
    for each in (
        _own("model-name", TEXT, "", "The model, as the word before the options; -m."),
        _own("model-version", TEXT, "", "Default the latest; -x."),
        _own(
            "url",
            TEXT,
            (),
            f"Of the server, default {DEFAULT_URL}, localhost:8001 for gRPC; two are compared; -u.",
            repeatable=True,
        ),
        _own("protocol", choice("protocol", "http", "grpc", *PLATFORMS), "http", "Default http; -i."),
        _own("repository", TEXT, "", "A server is started for the model in this repository."),
        _own("v2-url", TEXT, "", "Port with the v2 routes beside a platform's port; default the address itself."),
        _own("batch-size", integer(1), 1, "Items in a request; default 1; -b."),
        _own("shape", TEXT, (), "INPUT:3,224,224, without the batch dimension.", repeatable=True),
        _own("input-data", Kind("random|zero|PATH", str, ("random", "zero"), FILE.paths), "random", _INPUTS),
        _own("input-tensor-format", _FORMAT_KIND, "binary", "Of HTTP; default binary."),
        _own("output-tensor-format", _FORMAT_KIND, "binary", "Of HTTP; default binary."),
        _own("streaming", SWITCH, False, "ModelStreamInfer; over HTTP generate_stream."),
        _own("header", Kind("NAME:VALUE", _header), (), "A header or metadata of each request; -H.", repeatable=True),
        _own(
            "concurrency-range", _RANGE, (), "Requests in flight; default 1, 2, 4, ... until a doubling gains nothing."
        ),
        _own("request-rate-range", _RANGE, (), _RATES),
        _own("request-distribution", choice("d", "constant", "poisson"), "constant", "Of the rate; default constant."),
        _own("measurement-interval", integer(50), 5000, "Milliseconds of a level; default 5000; -p."),
        _own("percentile", _PERCENTILE, "99", "Of the limit and the plots; default 99."),
        _own("latency-threshold", number(0), 0.0, "Milliseconds; a sweep ends above it; -l."),
        _own("processes", integer(1, 64), 0, "Processes of the client; default 1, and 2 from 8 cores."),
        _own("output", TEXT, None, "FOLDER/NAME of the .json and .html; default bench-MODEL; empty for none."),
        _own("latency-report-file", FILE, "", "CSV as perf_analyzer writes it; -f."),
        _own("replay", Kind("PATH", str, (), FILE.paths), "", "Payload log, a file or a folder, to send at its times."),
        _own("speed", Kind("number", _speed), 1.0, "Times as fast as recorded; default 1; with --replay."),
        _own(
            "tolerance",
            Kind("ABSOLUTE:RELATIVE", _tolerance),
            FLOATING,
            "Of floating-point outputs; default 0.00001:0.0001, as golden requests have it; with --replay.",
        ),
        _own("compare", SWITCH, False, "Compare two JSON files of earlier runs."),
    )
}
ACCEPTED = tuple(OPTIONS.values())
_SHORT = {
    **{"-m": "model-name", "-x": "model-version", "-u": "url", "-i": "protocol", "-b": "batch-size", "-H": "header"},
    **{"-p": "measurement-interval", "-l": "latency-threshold", "-f": "latency-report-file"},
}


def bench(arguments: Sequence[str]) -> int:
    """Measure, or compare two files. Returns 0, or 1 if no request was answered. Raises BadOption and ServerError."""
    values, operands = read_values(ACCEPTED, long_options(arguments))
    if values["compare"]:
        return _compare_files(operands)
    if values["model-name"]:
        operands = [values["model-name"], *operands]
    if values["replay"]:
        return _replay(operands, values)
    if len(operands) != 1:
        raise BadOption("one model is expected: trident bench MODEL [--url URL | --repository REPO]")
    if values["concurrency-range"] and values["request-rate-range"]:
        raise BadOption("--concurrency-range and --request-rate-range exclude each other")
    if len(values["url"]) > 2 or (values["url"] and values["repository"]):
        raise BadOption("one --url, two to compare, or a --repository is expected")
    return _Bench(operands[0], values, f"trident bench {' '.join(arguments)}").run()


def _replay(operands: Sequence[str], values: dict[str, Any]) -> int:
    from trident.tools.bench.replay import replay

    if len(operands) > 1 or len(values["url"]) > 2:
        raise BadOption(
            "trident bench [MODEL] --replay PATH [--url URL [--url URL]]: one model, and two servers at most"
        )
    status = StatusLine()
    try:
        return replay(
            Path(values["replay"]),
            operands[0] if operands else "",
            [with_scheme(url).rstrip("/") for url in values["url"] or (DEFAULT_URL,)],
            version=values["model-version"],
            headers=dict(_headers(values)),
            speed=values["speed"],
            tolerance=values["tolerance"],
            output="bench-replay" if values["output"] is None else values["output"],
            tick=status.show,
        )
    finally:
        status.clear()


def _headers(values: dict[str, Any]) -> list[tuple[str, str]]:
    headers = list(values["header"])
    if token := process_environment().get(TOKEN_VARIABLE):
        headers.append(("Authorization", f"Bearer {token}"))
    return headers


def long_options(arguments: Sequence[str]) -> list[str]:
    """perf_analyzer's short options, such as -m, by their long names."""
    return [f"--{_SHORT[each]}" if each in _SHORT else each for each in arguments]


class _Bench:
    """One run. Its levels are kept as they are measured, so that Ctrl-C loses only the one at work."""

    def __init__(self, model: str, values: dict[str, Any], command: str) -> None:
        self.model, self.values, self.command = model, values, command
        self.version: str = values["model-version"]
        self.status = StatusLine()
        self.sides: list[tuple[str, list[Level]]] = []
        self.found: list[tuple[str, Difference]] = []
        self.notes: list[str] = []

    def run(self) -> int:
        batch, shapes = self.values["batch-size"], dict(parse_shape(each) for each in self.values["shape"])
        processes = self.values["processes"] or (2 if available_cores() >= 8 else 1)
        with ExitStack() as stack:
            clients = []
            for server, url in self._servers(stack):
                spec = server.spec(self.model, self.version)
                encoding = self._encoding(spec)
                inputs = make_inputs(spec, self.values["input-data"], batch, shapes)
                client = stack.enter_context(LoadClient(make_target(spec, inputs, url, encoding), processes))
                clients.append((client, server))
                self.sides.append((url, []))
                self.notes.append(f"{url}: {encoding.name}, {len(inputs)} different requests, {batch} items each")
            try:
                if len(clients) > 1:
                    self._turns(clients)
                else:
                    self._sweep(*clients[0])
            except KeyboardInterrupt:
                self.notes.append("Interrupted: what was measured until then.")
            except OSError as error:
                raise BadOption(f"no connection to {self.sides[-1][0]}: {error}") from None
            finally:
                self.status.clear()
        return self._report()

    def _servers(self, stack: ExitStack) -> Iterator[tuple[Server, str]]:
        protocol = self.values["protocol"]
        if self.values["repository"]:
            self.status.show(f"starting a server for {self.model}")
            server = stack.enter_context(started(self.values["repository"], self.model, protocols=(protocol,)))
            yield server, server.targets[protocol]
            return
        default = "localhost:8001" if protocol == "grpc" else DEFAULT_URL
        for url in self.values["url"] or (default,):
            url = url if protocol == "grpc" else with_scheme(url)
            is_grpc = protocol == "grpc" and not self.values["v2-url"]
            has_v2 = with_scheme(self.values["v2-url"]) if self.values["v2-url"] else url
            has_v2 = urlsplit(has_v2).netloc if is_grpc and "://" in has_v2 else has_v2
            yield Server(has_v2.rstrip("/"), is_grpc), url.rstrip("/")

    def _encoding(self, spec: ModelSpec) -> Encoding:
        values, headers = self.values, _headers(self.values)
        if spec.decoupled and not values["streaming"]:
            raise BadOption(f"'{self.model}' answers any number of times: --streaming is needed, best with -i grpc")
        return Encoding(
            protocol=values["protocol"],
            version=self.version,
            binary_input=values["input-tensor-format"] == "binary",
            binary_output=values["output-tensor-format"] == "binary",
            streaming=values["streaming"],
            headers=headers,
        )

    def _level(self, client: LoadClient, server: Server, load: float, seconds: float, warm_up: float) -> Level:
        is_rate = bool(self.values["request-rate-range"])
        name = f"{load:g} requests/s" if is_rate else f"concurrency {load:g}"
        level = measure(
            client,
            server,
            self.model,
            self.version,
            seconds=seconds,
            warm_up=warm_up,
            concurrency=0 if is_rate else int(load),
            rate=load if is_rate else 0.0,
            poisson=self.values["request-distribution"] == "poisson",
            tick=lambda: self.status.show(f"{name}: {seconds:g} s"),
        )
        if client.interrupted:
            raise KeyboardInterrupt
        return level

    def _loads(self, levels: Sequence[Level]) -> Iterator[float]:
        """The loads that were asked for; otherwise doubled until that gains nothing."""
        if given := self.values["concurrency-range"] or self.values["request-rate-range"]:
            yield from given
            return
        concurrency = 1
        while concurrency <= _MOST_CONCURRENCY:
            yield concurrency
            concurrency *= 2
            rates = [level.rate for level in levels[-3:]]
            if len(rates) == 3 and max(rates[1:]) < rates[0] * _GAIN:
                return

    def _sweep(self, client: LoadClient, server: Server) -> None:
        levels = self.sides[0][1]
        seconds = self.values["measurement-interval"] / 1000
        limit, percentile = self.values["latency-threshold"], self.values["percentile"]
        for load in self._loads(levels):
            level = self._level(client, server, load, seconds, min(_LONGEST_WARM_UP, seconds * _WARM_UP_SHARE))
            levels.append(level)
            if not level.requests or (limit and level.percentiles[percentile] > limit):
                return

    def _turns(self, clients: Sequence[tuple[LoadClient, Server]]) -> None:
        """Both servers at the same levels, one at a time, in turns: what the machine does else hits both alike."""
        seconds = self.values["measurement-interval"] / 1000 / 5
        for load in self.values["concurrency-range"] or self.values["request-rate-range"] or (1, 8, 32):
            for client, server in clients:
                self._level(client, server, load, seconds / 2, 0)
            turns: tuple[list[Level], list[Level]] = ([], [])
            for turn in range(_TURNS):
                for side in (0, 1) if turn % 2 == 0 else (1, 0):
                    turns[side].append(self._level(*clients[side], load, seconds, 0))
            for (_, levels), taken in zip(self.sides, turns, strict=True):
                levels.append(pooled(taken))
            if all(level.requests for taken in turns for level in taken):
                self.found += [(self.sides[0][1][-1].name, each) for each in differences(*turns, paired=True)]

    def _report(self) -> int:
        levels = [level for _, each in self.sides for level in each]
        print_levels(self.sides, self.found, self.notes)
        name = self.values["output"]
        name = f"bench-{self.model}" if name is None else name
        if name and levels:
            document = {
                "format": _FORMAT,
                "model": self.model,
                "command": self.command,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "notes": self.notes,
                "sides": [{"url": url, "levels": [asdict(level) for level in each]} for url, each in self.sides],
                "differences": [{"load": load, **asdict(each), "verdict": each.verdict} for load, each in self.found],
            }
            Path(f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
            sections = level_sections(self.sides, self.values["percentile"])
            if self.found:
                sections.insert(0, ("Second server over first", differences_table(self.found)))
            about = [
                f"{self.command}; {document['date']}, {available_cores():g} cores",
                *self.notes,
                knee_text(self.sides),
            ]
            Path(f"{name}.html").write_text(page(f"Load on {self.model}", about, sections))
            say(f"wrote {name}.json and {name}.html")
        if self.values["latency-report-file"]:
            report = perf_analyzer_csv(self.sides[0][1], self.values["batch-size"])
            Path(self.values["latency-report-file"]).write_text(report)
        return 0 if levels and any(level.requests for level in levels) else 1


def print_levels(
    sides: Sequence[tuple[str, Sequence[Level]]], found: Sequence[tuple[str, Difference]], notes: Sequence[str]
) -> None:
    for note in notes:
        say(note)
    for url, levels in sides:
        if len(sides) > 1:
            say(f"{url}:")
        say(table(HEADINGS, [row(level) for level in levels]))
        for remark in remarks(levels):
            say(remark)
    if text := knee_text(sides):
        say(text)
    if found:
        rows = [(load, each.what, each.text, each.verdict) for load, each in found]
        say(table(("load", "figure", "second over first [95 %]", ""), rows))


def knee_text(sides: Sequence[tuple[str, Sequence[Level]]]) -> str:
    levels = sides[-1][1]
    place = knee(levels)
    if place is None or len(levels) < 3 or len(sides) > 1:
        return ""
    level = levels[place]
    return (
        f"The knee is at {level.load}: {figure(level.rate)} requests/s, p50 {figure(level.percentiles['50'])} ms, "
        f"p99 {figure(level.percentiles['99'])} ms"
    )


def _compare_files(names: Sequence[str]) -> int:
    """Levels that both files have. Slices of runs at different times have only the noise within each run."""
    if len(names) != 2:
        raise BadOption("two files are expected: trident bench --compare BEFORE.json AFTER.json")
    sides = []
    for name in names:
        try:
            document = json.loads(Path(name).read_bytes())
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT}")
            sides.append((name, [Level.read(each) for each in document["sides"][-1]["levels"]]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadOption(f"{name} is not a file of trident bench: {error}") from None
    found: list[tuple[str, Difference]] = []
    second = {level.name: level for level in sides[1][1]}
    for level in sides[0][1]:
        if level.name in second:
            found += [(level.name, each) for each in differences([level], [second[level.name]], paired=False)]
    if not found:
        raise BadOption("the files have no level in common: give both runs the same --concurrency-range")
    print_levels(
        sides,
        found,
        ["The runs were at different times: give two --url at once where a few percent matter, which takes turns."],
    )
    return 0
