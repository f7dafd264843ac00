"""The steps of an image as JSON that is echoed, each alone on one thread: CPU milliseconds and new pages.

    python -m bench.json_steps

The text is that of the case c-echo: 150,528 numbers with up to 17 digits. A step that holds the interpreter's lock runs
on one core at a time, whatever the number of threads.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import simdjson

from bench.cases import IMAGE_ECHO
from bench.results import table

ROUNDS = 100


def measured(step: Callable[[], object]) -> tuple[float, float]:
    """The median of the CPU milliseconds of a step, and its page faults."""
    for _ in range(5):
        step()
    took: list[int] = []
    pages = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        step()
        took.append(time.thread_time_ns() - began)
    pages = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - pages
    return statistics.median(took) / 1e6, pages / ROUNDS


def main() -> None:
    body, _ = IMAGE_ECHO.body()
    parser: Any = simdjson.Parser()

    def parse() -> None:
        parser.parse(body)

    def read() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        array: Any = parser.parse(body).at_pointer("/inputs/0/data")
        return np.frombuffer(array.as_buffer(of_type="d"), np.float64)

    doubles = read().copy()
    floats = doubles.astype(np.float32)
    printed = floats.astype(np.float64)
    copied = bytearray(body)

    def copy() -> None:
        copied[:] = body

    steps: list[tuple[str, Callable[[], object], str]] = [
        ("copy of the text, for comparison", copy, "yes"),
        ("parse", parse, "yes"),
        ("parse, and the numbers as a buffer", read, "yes"),
        ("double to float", lambda: doubles.astype(np.float32), "no"),
        ("float to double", lambda: floats.astype(np.float64), "no"),
        ("NaN or infinity among them?", lambda: np.isfinite(printed).all(), "no"),
        ("write doubles", lambda: orjson.dumps(printed, option=orjson.OPT_SERIALIZE_NUMPY), "yes"),
        ("write floats with their own digits", lambda: orjson.dumps(floats, option=orjson.OPT_SERIALIZE_NUMPY), "yes"),
    ]
    rows = []
    for title, step, holds in steps:
        cpu, pages = measured(step)
        rows.append([title, f"{cpu:.3f}", f"{pages:.0f}", holds])
    print(table([f"{len(body):,} bytes", "CPU, ms", "new pages", "holds the lock"], rows))


if __name__ == "__main__":
    main()
