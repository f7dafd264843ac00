"""`trident tune`: finds how to run a model for a latency, and writes the configuration with its reasons."""

from __future__ import annotations

import json
import math
import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from google.protobuf import text_format

from trident.adapters.common.options import (
    FILE,
    FOLDER,
    TEXT,
    BadOption,
    BadValue,
    Kind,
    Option,
    choice,
    integer,
    number,
)
from trident.app.terminal import StatusLine, table
from trident.core.backends.cpu_budget import available_cores
from trident.core.config.schema import ModelConfig, decode_config, parse_model_config
from trident.core.http.sample_request import parse_shape
from trident.core.observability.log import say
from trident.tools.bench.measure import measure, started
from trident.tools.bench.measure import number as figure
from trident.tools.bench.page import Point, differences_table, grid, html_table, lines, page
from trident.tools.bench.requests import Encoding, make_inputs
from trident.tools.bench.tuning import AS_IT_IS, Bench, Objective, Trial, differs, outcome, reasons, search
from trident.tools.options import read_values

# Of the budget, where the rate that was asked for is measured at the end.
_SEARCH_SHARE = 0.9
_SHOWN = 12
_MOST_NAMED = 10
_RATE_S = 3.0
# In a file or a pipe, which would be silent for minutes.
_PROGRESS_EVERY_S = 10.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str) -> float:
    """Seconds."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(us|ms|s|m|h)", text, re.ASCII)
    if not found or not float(found[1]):
        raise BadValue(f"expected a duration as 20ms, 1.5s or 10m, got {text[:64]}")
    return float(found[1]) * _UNITS[found[2]]


_own = Option.of_command
_DURATION = Kind("duration", _duration)


ACCEPTED = (
    _own("repository", FOLDER, "", "The folder that has the model's folder."),
    _own("p99", _DURATION, 0.0, "The latency that 99 of 100 requests must keep."),
    _own("throughput", number(0), 0.0, "Requests/s that are enough; default as many as possible."),
    _own("budget", _DURATION, 600.0, "How long it may take; default 10m."),
    _own("memory", number(0), 0.0, "MB that a server may have; default no limit."),
    _own("precision", choice("precision", "same", "lower"), "same", "lower: bfloat16 or FP16 where answers stay near."),
    _own("longest", integer(1), 0, "The most that clients send of a variable dimension; then lengths may be padded."),
    _own("protocol", choice("protocol", "http", "grpc"), "http", "Default http."),
    _own("input-data", Kind("random|zero|PATH", str, ("random", "zero"), FILE.paths), "random", "What is sent."),
    _own("batch-size", integer(1), 1, "Items in a request; default 1."),
    _own("shape", TEXT, (), "INPUT:3,224,224, without the batch dimension.", repeatable=True),
    _own("output", FOLDER, None, "Folder of the files; default MODEL-tuned."),
)


def tune(arguments: Sequence[str]) -> int:
    """Search, compare and write. Returns 0, or 1 if the model cannot be measured. Raises BadOption and ServerError."""
    values, words = read_values(ACCEPTED, arguments)
    if len(words) != 1 or not values["repository"] or not values["p99"]:
        raise BadOption("trident tune MODEL --repository=REPO --p99=20ms")
    (model,) = words
    folder = Path(values["repository"], model)
    if not folder.is_dir():
        if "://" in values["repository"]:
            raise BadOption(f"{values['repository']} is in an object store: copy the model to this machine first")
        names = sorted(each.name for each in folder.parent.glob("*/") if not each.name.startswith("."))
        found = ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")
        raise BadOption(f"there is no folder {folder}\n{folder.parent} has {found or 'no model'}")
    config = read_config(folder, values["repository"], model)
    if config.HasField("ensemble_scheduling"):
        raise BadOption(f"'{model}' is an ensemble: tune the models of its steps")
    objective = Objective(
        target_ms=1e3 * values["p99"], rate=values["throughput"], memory_mb=values["memory"] or math.inf
    )
    shapes = dict(parse_shape(each) for each in values["shape"])
    status = StatusLine(every_s=_PROGRESS_EVERY_S)
    began = time.monotonic()

    def tell(text: str) -> None:
        status.show(f"{time.monotonic() - began:.0f} of {values['budget']:.0f} s: {text}")

    with Bench(
        model,
        folder,
        config,
        objective,
        lambda spec: make_inputs(spec, values["input-data"], values["batch-size"], shapes),
        Encoding(protocol=values["protocol"]),
        tell,
        lower=values["precision"] == "lower",
        longest=values["longest"],
    ) as bench:
        note = ""
        try:
            share = _SEARCH_SHARE if objective.rate else 1.0
            search(bench, int(available_cores()), share * values["budget"])
            if objective.rate:
                note = _at_rate(bench, bench.chosen(), values["budget"] * (1 - share))
        except KeyboardInterrupt:
            note = "Interrupted: what was measured until then."
        finally:
            status.clear()
    before = bench.trials.get(AS_IT_IS)
    if before is None or before.error:
        say(f"the model cannot be measured as it is: {before.error if before else 'interrupted'}")
        return 1
    took = time.monotonic() - began
    _report(bench, [note, f"trident tune {' '.join(arguments)}; {took:.0f} s"], values["output"] or f"{model}-tuned")
    return 0


def read_config(folder: Path, repository: str, model: str) -> ModelConfig:
    """The configuration as it is written, or as a server completes it if there is none."""
    file = folder / "config.pbtxt"
    if file.exists():
        config = parse_model_config(decode_config(file.read_bytes(), str(file)), str(file))
    else:
        with started(repository, model) as server:
            config = server.config(model, "")
    config.name = model
    return config


def _at_rate(bench: Bench, chosen: Trial, most_s: float) -> str:
    """Measure the chosen configuration at the traffic that was asked for, in an open loop."""
    if chosen.error:
        return ""
    server, client = bench.server(chosen.candidate)
    rate, seconds = bench.objective.rate, min(_RATE_S, most_s)
    level = measure(client, server, bench.model, seconds=seconds, rate=rate, poisson=True)
    return (
        f"At {level.load}, sent as independent callers do: {figure(level.rate)}/s answered, p99 {figure(level.p99)} ms."
    )


def _report(bench: Bench, about: Sequence[str], output: str) -> None:
    objective = bench.objective
    before = bench.trials[AS_IT_IS]
    chosen = bench.chosen()
    raced = [trial for trial in bench.ranked() if trial is not before and trial.raced] or [before]
    best = raced[0] if chosen is before else chosen
    others = [trial for trial in raced if trial is not best]
    found = bench.gained(AS_IT_IS, best.candidate)
    beside = bench.gained(others[0].candidate, best.candidate)[:1] if others else []
    target = f"p99 within {objective.target_ms:g} ms"
    target += f" at {objective.rate:g} requests/s" if objective.rate else ""
    level = chosen.best(objective.target_ms)
    rows = [
        (trial.candidate.text, outcome(trial, objective), memory_text(trial))
        for trial in bench.ranked()
        if trial.levels
    ]
    memory = f", {figure(chosen.memory_mb)} MB" if chosen.memory_mb else ""
    said = [
        *filter(None, about),
        f"Target: {target}. {len(rows)} ways measured on {available_cores():g} cores.",
        f"As it was: {outcome(before, objective)}.",
        f"Chosen: {chosen.candidate.text}: {outcome(chosen, objective)}{memory}.",
    ]
    if difference := bench.differences.get(chosen.candidate.answers):
        said.append(f"Beside the model as it is, {differs(difference)}.")
    if chosen.memory_mb > objective.memory_mb:
        said.append(f"No way that was measured takes at most {figure(objective.memory_mb)} MB.")
    for each in found:
        said.append(f"{each.what} of the best way over as it was, in turns: {each.text}: {each.verdict}.")
    for each in beside:
        said.append(f"{each.what} of it over the next, {others[0].candidate.text}: {each.text}: {each.verdict}.")
    if level is None:
        said.append(
            "Nothing that was measured keeps the target: a faster model, another machine or a longer target is needed."
        )
    elif objective.rate and level.rate < objective.rate:
        said.append(f"{objective.rate:g} requests/s need {math.ceil(objective.rate / level.rate)} such machines.")
    say(table(("way", f"most requests/s with {target}", "MB"), rows[:_SHOWN]))
    say("\n".join(said))
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    notes = [*said, *reasons(bench, chosen)]
    comments = [line for note in notes for line in textwrap.wrap(note, 110, subsequent_indent="  ")]
    config = chosen.candidate.apply(bench.config)
    text = "".join(f"# {line}\n" for line in comments) + "\n" + text_format.MessageToString(config)
    (folder / "config.pbtxt").write_text(text)
    trials = [asdict(trial) for trial in bench.ranked()]
    document = {"model": bench.model, "said": said, "differences": [asdict(each) for each in found], "trials": trials}
    (folder / "tune.json").write_text(json.dumps(document, indent=1) + "\n")
    sections = [
        ("Frontier", grid([_frontier(bench, chosen)])),
        *([("In turns", differences_table([("", each) for each in found]))] if found else []),
        ("Ways", html_table(("way", "most within the target", "MB"), rows)),
        ("config.pbtxt", f"<pre>{escape(text)}</pre>"),
    ]
    (folder / "tune.html").write_text(page(f"Tuning of {bench.model}", said, sections))
    say(f"wrote {folder}/config.pbtxt, tune.html and tune.json; the model itself is as it was")


def memory_text(trial: Trial) -> str:
    """MB, if they were read: an interrupt comes before that, and the files of the kernel may be closed to this user."""
    return f"{trial.memory_mb:.0f}" if trial.memory_mb else "not read"


def _frontier(bench: Bench, chosen: Trial) -> str:
    target = bench.objective.target_ms

    def points(trial: Trial) -> list[Point]:
        best = trial.best(target)
        return [
            Point(
                level.rate,
                level.p99,
                about=f"{trial.candidate.text}, {level.load}: {figure(level.rate)}/s, {figure(level.p99)} ms",
                marked=trial is chosen and level is best,
            )
            for level in (*trial.levels, *trial.raced)
            # Values far above the target would hide the rest.
            if level.requests and level.p99 < 3 * target
        ]

    before = bench.trials[AS_IT_IS]
    others = [point for trial in bench.trials.values() if trial not in (before, chosen) for point in points(trial)]
    series = [("chosen", points(chosen)), ("other ways", others)]
    if before is not chosen:
        series.append(("as it was", points(before)))
    title = "p99 over throughput; the line is the target, the ring the chosen load"
    return lines(title, series, x="requests/s", y="ms", limit=target, joined=False)
