"""The changes that a restarted engine finds in the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trident.core.remote.calls import CALLS
from trident.core.remote.control_log import Change, ControlLog


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "changes"


def later(folder: Path) -> list[tuple[str, list[Any]]]:
    """The changes that the next engine reads."""
    return [(change.call.name, change.arguments) for change in ControlLog(folder).changes()]


def note(control_log: ControlLog, call: str, *arguments: Any) -> None:
    control_log.note(Change(CALLS[call], list(arguments)))


def test_the_folder_is_private_and_empty_at_first(folder: Path) -> None:
    assert ControlLog(folder).changes() == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_log_keeps_the_last_change_of_each_model_in_order(folder: Path) -> None:
    control_log = ControlLog(folder)
    note(control_log, "load_model", "a", {})
    note(control_log, "load_model", "b", {})
    note(control_log, "unload_model", "a", False, False)
    note(control_log, "load_directory", "c", "/models/c")
    note(control_log, "load_model", "b", {"config": '{"max_batch_size": 3}'})
    changes = [
        ("unload_model", ["a", False, False]),
        ("load_directory", ["c", "/models/c"]),
        ("load_model", ["b", {"config": '{"max_batch_size": 3}'}]),
    ]
    assert [(change.call.name, change.arguments) for change in control_log.changes()] == changes
    assert later(folder) == changes
    assert len(list(folder.iterdir())) == len(changes)


def test_a_later_log_continues_the_last_one(folder: Path) -> None:
    first = ControlLog(folder)
    for name in "abc":
        note(first, "load_model", name, {})
    second = ControlLog(folder)
    note(second, "unload_model", "b", False, False)
    note(second, "load_model", "d", {})
    assert [(call, arguments[0]) for call, arguments in later(folder)] == [
        ("load_model", "a"),
        ("load_model", "c"),
        ("unload_model", "b"),
        ("load_model", "d"),
    ]
    assert ControlLog(folder).unloaded() == {"b"}


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a/b", ".", "", "1", "1.next", "n" * 5000, "\udcff", "\0"], ids=range(10)
)
def test_a_model_name_is_never_used_as_a_path(folder: Path, name: str) -> None:
    note(ControlLog(folder), "load_model", name, {})
    assert later(folder) == [("load_model", [name, {}])]
    assert [path.parent for path in folder.parent.rglob("*") if path.is_file()] == [folder]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'["load_model", []]', b'["submit", ["a"]]', b"null"])
def test_a_malformed_note_is_skipped_and_logged(folder: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    control_log = ControlLog(folder)
    note(control_log, "load_model", "a", {})
    note(control_log, "load_model", "b", {})
    (folder / "1").write_bytes(content)
    assert [arguments[0] for _, arguments in later(folder)] == ["b"]
    assert "cannot be read" in caplog.text


def test_a_half_written_note_is_ignored(folder: Path) -> None:
    note(ControlLog(folder), "load_model", "a", {})
    (folder / "2.next").write_bytes(b'["load_mod')
    assert [arguments[0] for _, arguments in later(folder)] == ["a"]


def test_a_note_that_cannot_be_written_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    control_log = ControlLog(folder)
    note(control_log, "load_model", "a", {})
    (folder / f"{os.getpid()}.next").mkdir()  # nothing can replace it
    note(control_log, "load_model", "b", {})
    assert "'b' was changed" in caplog.text
    assert [change.arguments[0] for change in control_log.changes()] == ["a"]
