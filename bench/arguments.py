"""Types of command-line arguments that several benchmarks take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def names_among(known: Sequence[str]) -> type[list[str]]:
    """An argument type: some of `known`, separated by commas."""

    class Names(list[str]):
        def __init__(self, text: str) -> None:
            super().__init__(text.split(","))
            unknown = sorted(set(self) - set(known))
            if unknown:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(known)}")

    return Names


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
