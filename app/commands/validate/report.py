"""The report of `trident validate`, as text for a person or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby

from core.observability.log_text import escaped

_INDENT = "  "
_WARNINGS = "Warnings. The models load all the same; where no other effect is named, a setting has none.\n"
_LONGEST_PATH = 44


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or warning. `model` is empty for a problem of the repository itself; `hint` may be empty."""

    repository: str
    model: str
    path: str
    message: str
    hint: str


@dataclass(slots=True)
class Report:
    """`models` is the number of examined models, good and bad; `warnings` keep no model from loading."""

    models: int = 0
    findings: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)


def text_report(report: Report) -> str:
    """One block per model: its name, then path and message of each problem, with the hint below the message.

    Blocks of the same form with the warnings follow.
    """
    blocks = _blocks(report.findings)
    if report.warnings:
        blocks += [_WARNINGS, *_blocks(report.warnings)]
    total = f"{_count(report.models, 'model')}, no problems"
    if report.findings:
        bad = len({(each.repository, each.model) for each in report.findings if each.model})
        total = f"{_count(len(report.findings), 'problem')}, in {bad} of {_count(report.models, 'model')}"
    if report.warnings:
        total += f"; {_count(len(report.warnings), 'warning')}"
    return "\n".join([*blocks, f"{total}\n"])


def json_report(report: Report) -> str:
    """A JSON object: the number of models, and the lists of problems and warnings.

    Each entry has repository, model, path, message and hint.
    """
    problems, warnings = ([asdict(each) for each in found] for found in (report.findings, report.warnings))
    return json.dumps({"models": report.models, "problems": problems, "warnings": warnings}, indent=2) + "\n"


def _blocks(findings: Iterable[Finding]) -> list[str]:
    blocks = []
    for place, found in groupby(findings, key=lambda each: (each.repository, each.model)):
        name = f"{place[1]} ({place[0]})" if place[1] else place[0]
        blocks.append(f"{escaped(name)}\n{_block(list(found))}")
    return blocks


def _block(findings: list[Finding]) -> str:
    paths = [escaped(each.path) for each in findings]
    # One long path must not push all messages off the screen: the message of a long path is on the next line.
    width = max((len(path) for path in paths if len(path) <= _LONGEST_PATH), default=0)
    lines = []
    for path, each in zip(paths, findings, strict=True):
        message = escaped(each.message)
        margin = _INDENT + " " * width + _INDENT
        fits = len(path) <= width
        lines += [f"{_INDENT}{path:<{width}}{_INDENT}{message}"] if fits else [_INDENT + path, margin + message]
        if each.hint:
            lines.append(f"{margin}hint: {escaped(each.hint)}")
    return "\n".join(lines) + "\n"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
