"""How many examples the fuzzers make.

The examples are the same in every run. With FUZZ_EXAMPLES=n in the environment each test makes n new ones, and a
failure prints how to repeat it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def examples(few: int) -> int:
    """The number for one test."""
    return EXAMPLES or few


def bounded(few: int) -> settings:
    """The settings of a test of Hypothesis."""
    return settings(
        max_examples=examples(few),
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
