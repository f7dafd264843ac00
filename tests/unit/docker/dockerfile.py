"""A Dockerfile as stages and instructions, and those rules of hadolint that apply to it.

Source: hadolint's list of rules. hadolint itself is one binary from no package index, so it does not run here.
Not checked, as there is nothing in the file that they speak of: other package tools than apt and pip, wget and curl,
shells other than bash, and ShellCheck's rules for the text of RUN.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_LOGICAL_END = re.compile(r"\\\n\s*")
_PINNED = re.compile(r'^"?[a-z0-9.+-]+=[^=]+"?$')


@dataclass(frozen=True)
class Instruction:
    name: str
    value: str

    @property
    def words(self) -> list[str]:
        return self.value.split()

    @property
    def exec_form(self) -> list[str] | None:
        """The words of a JSON array; None for other forms."""
        try:
            words = json.loads(self.value.partition("CMD ")[2] if self.name == "HEALTHCHECK" else self.value)
        except ValueError:
            return None
        return words if isinstance(words, list) else None


@dataclass
class Stage:
    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [each.value for each in self.instructions if each.name == name]


@dataclass
class Dockerfile:
    """The stages of a Dockerfile; `arguments` are the ARGs before the first stage."""

    arguments: dict[str, str]
    stages: list[Stage]

    @classmethod
    def parse(cls, text: str) -> Dockerfile:
        parsed = cls({}, [])
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        for line in _LOGICAL_END.sub(" ", "\n".join(lines)).splitlines():
            name, _, value = line.strip().partition(" ")
            if name.upper() == "FROM":
                base, _, stage = value.partition(" AS ")
                parsed.stages.append(Stage(base, stage))
            elif parsed.stages:
                parsed.stages[-1].instructions.append(Instruction(name.upper(), value.strip()))
            else:
                variable, _, default = value.partition("=")
                parsed.arguments[variable] = default
        return parsed

    def stage(self, name: str) -> Stage:
        return next(each for each in self.stages if each.name == name)

    def lineage(self, name: str) -> list[Instruction]:
        """All instructions of an image, beginning with those of its base stages."""
        stage = self.stage(name)
        names = {each.name for each in self.stages}
        below = self.lineage(stage.base) if stage.base in names else []
        return [*below, *stage.instructions]


def breaches(dockerfile: Dockerfile) -> list[str]:
    """The violated rules, by hadolint's numbers."""
    found = list(_stage_breaches(dockerfile))
    for stage in dockerfile.stages:
        lineage = dockerfile.lineage(stage.name) if stage.name else stage.instructions
        for instruction in stage.instructions:
            found += [rule for rule, broken in _RULES.items() if broken(instruction, lineage)]
        found += [rule for rule, name in (("DL4003", "CMD"), ("DL4004", "ENTRYPOINT")) if len(stage.values(name)) > 1]
        names = [each.name for each in stage.instructions]
        found += ["DL3059" for one, two in pairwise(names) if one == two == "RUN"]
    return sorted(set(found))


def _stage_breaches(dockerfile: Dockerfile) -> Iterator[str]:
    names: list[str] = []
    for stage in dockerfile.stages:
        variable = re.fullmatch(r"\$\{?(\w+)\}?", stage.base)
        base = dockerfile.arguments.get(variable[1], "") if variable else stage.base
        if base not in names:
            tag = base.rpartition("/")[2].partition(":")[2]
            yield from ["DL3006"] if not tag else ["DL3007"] if tag == "latest" else []
        for instruction in stage.instructions:
            source = re.search(r"--from=(\S+)", instruction.value) if instruction.name == "COPY" else None
            if source and source[1] not in names:
                yield "DL3022"
        if stage.name in names:
            yield "DL3024"
        names.append(stage.name)
    last = dockerfile.stages[-1]
    final = dockerfile.lineage(last.name) if last.name else last.instructions
    users = [each.value for each in final if each.name == "USER"]
    if not users or users[-1].partition(":")[0] in ("root", "0"):
        yield "DL3002"
    if not any(each.name == "HEALTHCHECK" for each in final):
        yield "DL3057"


def _commands(run: Instruction) -> list[list[str]]:
    return [command.split() for command in re.split(r"&&|\|\||;|\|", run.value)] if run.name == "RUN" else []


def _installs(run: Instruction) -> list[list[str]]:
    return [words for words in _commands(run) if words[:1] == ["apt-get"] and "install" in words]


def _pips(run: Instruction) -> list[list[str]]:
    return [words for words in _commands(run) if re.search(r"\bpip3? install\b", " ".join(words))]


def _sets(lineage: list[Instruction], text: str) -> bool:
    return any(text in each.value for each in lineage if each.name in ("ENV", "SHELL"))


def _unpinned(words: list[str]) -> bool:
    packages = [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]
    return not all(_PINNED.match(package) for package in packages)


_RULES: dict[str, Callable[[Instruction, list[Instruction]], bool]] = {
    "DL3000": lambda each, _: each.name == "WORKDIR" and not each.value.startswith(("/", "$")),
    "DL3003": lambda each, _: any(words[:1] == ["cd"] for words in _commands(each)),
    "DL3004": lambda each, _: any(words[:1] == ["sudo"] for words in _commands(each)),
    "DL3008": lambda each, _: any(_unpinned(words) for words in _installs(each)),
    "DL3009": lambda each, _: bool(_installs(each)) and "rm -rf /var/lib/apt/lists/*" not in each.value,
    "DL3013": lambda each, _: any(not {"-r", "--requirement"} & set(words) for words in _pips(each)),
    "DL3014": lambda each, _: any(not {"-y", "--yes", "-qq"} & set(words) for words in _installs(each)),
    "DL3015": lambda each, _: any("--no-install-recommends" not in words for words in _installs(each)),
    "DL3020": lambda each, _: each.name == "ADD",
    "DL3025": lambda each, _: each.name in ("CMD", "ENTRYPOINT", "HEALTHCHECK") and each.exec_form is None,
    "DL3027": lambda each, _: any(words[:1] == ["apt"] for words in _commands(each)),
    "DL3042": lambda each, lineage: (
        any("--no-cache-dir" not in words for words in _pips(each)) and not _sets(lineage, "PIP_NO_CACHE_DIR=1")
    ),
    "DL3045": lambda each, lineage: (
        each.name == "COPY" and not each.words[-1].startswith("/") and not any(one.name == "WORKDIR" for one in lineage)
    ),
    "DL3046": lambda each, _: any(
        words[:1] == ["useradd"] and not {"-l", "--no-log-init"} & set(words) for words in _commands(each)
    ),
    "DL4000": lambda each, _: each.name == "MAINTAINER",
    "DL4006": lambda each, lineage: (
        each.name == "RUN" and bool(re.search(r"[^|]\|[^|]", each.value)) and not _sets(lineage, "pipefail")
    ),
}
