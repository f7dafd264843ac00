"""Fixtures and hooks for all tests."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.flaky import FLAKY
from tests.project import ROOT
from tests.threads import forget_server_threads, server_threads
from tests.waiting import until

# An example may take long on a slow machine. `settings()` are Hypothesis's own, which are others in CI.
settings.register_profile("tests", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

_HAS_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def shipped_models() -> Path:
    """The model repository that ships with the project."""
    return ROOT / "deploy" / "models"


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> None:
    """Exclude what is there before a module's tests from garbage collection: the collected tests, and what the modules
    before have imported. Full ones, which many tests make, would take half a second and more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left(frozen_heap: None) -> Iterator[None]:
    """Assert that no thread of a server runs after a module's tests."""
    forget_server_threads()
    yield
    until(lambda: not server_threads(), lambda: f"these threads are left: {server_threads()}", limit_s=60)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in captured output, which a worker of pytest-xdist cannot send."""
    report = yield
    item.stash[_HAS_FAILED] = report.failed or (report.when != "setup" and item.stash.get(_HAS_FAILED, False))
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """After a test that failed, tear down the fixtures of its module too. The next test, and a second try of this one,
    do not get the server that it may have broken."""
    try:
        if item.stash.get(_HAS_FAILED, False) and (module := item.getparent(pytest.Module)):
            item.session._setupstate.teardown_exact(module.parent)
    finally:
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.partition("[")[0] in FLAKY:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name binary values by their argument: an archive may contain the time at which it was made, and the workers of
    pytest-xdist must collect the same ids."""
    return argname if isinstance(val, bytes) and (not val.isascii() or b"\0" in val) else None
