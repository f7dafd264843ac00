"""Rows of features as text: this project's reader beside numpy's two, in this process."""

from __future__ import annotations

import numpy as np

from bench.payloads import FEATURES, ROWS, csv_readers, csv_texts, timed_ms
from bench.results import Figures

BASE = "numpy.loadtxt"
OURS = "decode_csv"
GOAL = 1.3


def measure_csv(results: Figures) -> None:
    """Note the milliseconds of each reader for each kind of text. RuntimeError if their results differ."""
    for title, text in csv_texts().items():
        readers = csv_readers(text)
        expected = readers[BASE]()
        for name, read in readers.items():
            # The last digit may differ, because not all of them parse to a double first.
            if not np.allclose(read(), expected, rtol=1e-6, atol=0, equal_nan=True):
                raise RuntimeError(f"{name} and {BASE} read '{title}' differently")
        times = dict(zip(readers, timed_ms(list(readers.values())), strict=True))
        for name, taken in times.items():
            results.note(title, name, "ms", taken)
        ratios = [own / base for own, base in zip(times[OURS], times[BASE], strict=True)]
        ratio = results.note(title, f"time over {BASE}'s", "ratio", ratios)
        results.at_most(title, f"time over {BASE}'s", GOAL, ratio.median)
    results.remarks.append(f"`csv`: {ROWS:,} rows of {FEATURES} features; the readers in turn, the ratio of each turn.")
