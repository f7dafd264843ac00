"""Whether and where a run's files are published: not if the run shared its cores with other processes.

A run looks at the machine before it begins and watches it until it ends. It does not begin on a crowded machine, and
if the machine was crowded during the run, its files go to build/bench/unpublished. `--crowded` overrides both and marks
the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from bench import machine
from bench.machine_load import OTHERS_LIMIT, STOLEN_LIMIT, LoadSeen, LoadWatch, look
from tests.project import ROOT

RESULTS = ROOT / "bench" / "results"
UNPUBLISHED = ROOT / "build" / "bench" / "unpublished"
LIMITS = f"The limits are {OTHERS_LIMIT:.0%} for other processes and {STOLEN_LIMIT:.0%} for stolen time."
CROWDED = "**Crowded: this run shared its cores.**"


def add_publication_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the two result files")
    parser.add_argument(
        "--crowded", action="store_true", help="measure and publish on a crowded machine too, marked as crowded"
    )


class Publication:
    """One run, from the look at the machine to its files.

    Raises SystemExit with the reason if the machine is crowded and `--crowded` is not given.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        *,
        look: Callable[[], LoadSeen] = look,
        watch: Callable[[], LoadWatch] = LoadWatch,
    ) -> None:
        self._folder: Path = options.results
        self._crowded_allowed: bool = options.crowded
        before = look()
        print(f"the machine before the run: {before.text()}", file=sys.stderr, flush=True)
        if before.crowded and not self._crowded_allowed:
            raise SystemExit(
                f"The machine is crowded: {before.text()}. {LIMITS} "
                "Wait until it is quiet, or give --crowded to measure all the same and mark the results."
            )
        self._watch = watch()

    def seen(self) -> LoadSeen:
        """The machine since the beginning of the run."""
        return self._watch.seen()

    def is_public(self, seen: LoadSeen) -> bool:
        return self._crowded_allowed or not seen.crowded

    def write(self, name: str, json: str, markdown: str, seen: LoadSeen) -> Path:
        """Write NAME.json and NAME.md, and return the path of the latter. `name` follows the date and the machine."""
        folder = self._folder if self.is_public(seen) else UNPUBLISHED
        if not self.is_public(seen):
            print(f"not published: the machine was crowded during the run, {seen.text()}. {LIMITS}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{machine.today()}-{machine.slug()}{name}{'-crowded' if seen.crowded else ''}"
        (folder / f"{stem}.json").write_text(json)
        (folder / f"{stem}.md").write_text(markdown)
        print(f"wrote {folder / stem}.json and .md", file=sys.stderr)
        return folder / f"{stem}.md"


def machine_sentence(seen: LoadSeen | None) -> str:
    """What a result file says of the machine during the run; nothing for files of runs that were not watched."""
    if seen is None:
        return ""
    mark = f" {CROWDED}" if seen.crowded else ""
    return f" During the run {seen.text()}.{mark}"


def update_readme(readme: Path, text: str, marks: tuple[str, str]) -> None:
    """Put `text` between the two marks. ValueError if they are missing."""
    before, _, rest = readme.read_text().partition(marks[0])
    _, mark, after = rest.partition(marks[1])
    if not mark:
        raise ValueError(f"{readme} lacks the marks {marks[0]} and {marks[1]}")
    readme.write_text(f"{before}{marks[0]}\n{text}{marks[1]}{after}")
