"""Runs the corpus, and prints a line for each model; the exit status is 1 if one was imported and differs."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from tests.import_corpus import Outcome, Writer, run

FRAMEWORKS = ("xgboost", "lightgbm", "catboost", "sklearn")


def cases() -> dict[str, Writer]:
    found: dict[str, Writer] = {}
    for framework in FRAMEWORKS:
        try:
            module = import_module(f"tests.import_corpus.{framework}_models")
        except ModuleNotFoundError as error:
            print(f"{framework} is left out: {error.name} is not installed")
            continue
        found |= {f"{framework}/{name}": write for name, write in module.CASES.items()}
    return found


def main(parts: list[str]) -> int:
    counted: Counter[str] = Counter()
    started = time.monotonic()
    for name, write in cases().items():
        if parts and not any(part in name for part in parts):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = run(name, write, Path(folder, "case"))
            except Exception as error:  # the framework of today no longer makes such a model
                outcome = Outcome(name, "broken", repr(error))
        counted[outcome.verdict] += 1
        print(f"{outcome.verdict:12} {name}: {outcome.reason}", flush=True)
    total = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counted.items()))
    print(f"{counted.total()} models in {time.monotonic() - started:.0f} s: {total}")
    return 1 if counted["differs"] or counted["broken"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
