"""The tests that are rerun once when they fail, at most three, each with the external influence on it.

A test is mended rather than added: one that fails now and then hides a fault that does so.
"""

from __future__ import annotations

FLAKY = {
    "tests/unit/core/lifecycle/test_memory.py::test_load_uses_memory_of_idle_models_or_is_refused": (
        "The resident memory of the process is compared before and after; glibc decides what of it is returned."
    ),
}
