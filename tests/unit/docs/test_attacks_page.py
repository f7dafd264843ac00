"""docs/spec/attacks.md names the tests of the attacks, and leaves out none."""

from __future__ import annotations

import re

from tests.project import ROOT
from trident.app.worker.http2.frames import Http2Limits

PAGE = (ROOT / "docs" / "spec" / "attacks.md").read_text()
TESTS = (ROOT / "tests" / "unit" / "app" / "worker" / "http2" / "test_attacks.py").read_text()
# It shows that a client is served which looks like one that attacks.
SERVED = {"test_rapid_reset_within_the_limits_goes_on"}


ON_HTTP2, ON_MESSAGES = PAGE.split("## 2. On messages")


def existing_tests() -> set[str]:
    """The names of the unit tests of core."""
    paths = (ROOT / "tests" / "unit" / "core").rglob("test_*.py")
    return {name for path in paths for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}


def test_the_table_of_attacks_has_the_tests_that_there_are() -> None:
    named = set(re.findall(r"`(test_\w+)`", ON_HTTP2))
    assert named == set(re.findall(r"^def (test_\w+)", TESTS, re.MULTILINE)) - SERVED


def test_the_tests_of_attacks_on_messages_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", ON_MESSAGES))
    assert named
    assert named <= existing_tests()


def test_the_limits_are_those_of_the_layer() -> None:
    limits = Http2Limits()
    assert f"budget: {limits.burst:,} in a row, and {limits.rate} more each second" in PAGE
    assert f"a stream keeps its place, of {limits.streams:,}," in PAGE
    assert f"{limits.header_frames} frames and {limits.header_list >> 10} KB for one header section" in PAGE
    assert f"with 32 bytes for each, so {limits.header_list // 32} of them" in PAGE
    assert f"{limits.unsent >> 20} MB wait on a connection and {limits.unsent_in_all >> 20} MB in all" in PAGE
    assert f"{limits.window >> 20} MB for a stream, {2 * limits.window >> 20} MB for all" in PAGE
    assert f"| {limits.held >> 20} MB, until the whole connection waits |" in PAGE
    assert f"| {limits.high_water >> 20} MB; the rest waits" in PAGE
    assert f"| half-open handshakes | {limits.handshake_s:g} s |" in PAGE
    assert f"| half a header section, and then silence | {limits.stall_s:g} s |" in PAGE
