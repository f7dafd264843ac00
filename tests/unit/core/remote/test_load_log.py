"""What was loaded and unloaded by request, as an engine that is started again finds it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.remote.calls.calls import CALLS
from core.remote.load_log import LoadLog
from tests.unit.fake_engine import FakeEngine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "loads"


def later(folder: Path) -> list[tuple[str, list[Any]]]:
    """What the next engine's journal holds."""
    return [(change.call, change.arguments) for change in LoadLog(folder).changes()]


def test_the_folder_is_this_users_alone_and_empty_at_first(folder: Path) -> None:
    assert LoadLog(folder).changes() == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_each_models_last_change_counts_in_the_order_of_the_changes(folder: Path) -> None:
    journal = LoadLog(folder)
    journal.note("load_model", ["a", {}])
    journal.note("load_model", ["b", {}])
    journal.note("unload_model", ["a", False, False])
    journal.note("load_directory", ["c", "/models/c"])
    journal.note("load_model", ["b", {"config": '{"max_batch_size": 3}'}])
    changes = [
        ("unload_model", ["a", False, False]),
        ("load_directory", ["c", "/models/c"]),
        ("load_model", ["b", {"config": '{"max_batch_size": 3}'}]),
    ]
    assert [(change.call, change.arguments) for change in journal.changes()] == changes
    assert later(folder) == changes
    assert len(list(folder.iterdir())) == len(changes)


def test_a_later_journal_goes_on_where_the_last_one_ended(folder: Path) -> None:
    first = LoadLog(folder)
    for name in "abc":
        first.note("load_model", [name, {}])
    second = LoadLog(folder)
    second.note("unload_model", ["b", False, False])
    second.note("load_model", ["d", {}])
    assert [(call, arguments[0]) for call, arguments in later(folder)] == [
        ("load_model", "a"),
        ("load_model", "c"),
        ("unload_model", "b"),
        ("load_model", "d"),
    ]
    assert LoadLog(folder).unloaded() == {"b"}


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a/b", ".", "", "1", "1.next", "n" * 5000, "\udcff", "\0"], ids=range(10)
)
def test_a_models_name_is_no_path(folder: Path, name: str) -> None:
    LoadLog(folder).note("load_model", [name, {}])
    assert later(folder) == [("load_model", [name, {}])]
    assert [path.parent for path in folder.parent.rglob("*") if path.is_file()] == [folder]


def test_all_that_a_load_brings_along_comes_back(folder: Path) -> None:
    parameters = {"config": "{}", "file:1/model.onnx": bytes(range(256)), "empty": b"", "text": "é\udcff\0"}
    LoadLog(folder).note("load_model", ["a", parameters])
    assert later(folder) == [("load_model", ["a", parameters])]


def test_a_change_is_asked_of_the_engine_as_it_was(folder: Path) -> None:
    journal = LoadLog(folder)
    journal.note("load_model", ["a", {"config": "{}"}])
    journal.note("unload_model", ["b", True, True])
    engine = FakeEngine()
    for change in journal.changes():
        CALLS[change.call].ask(engine, change.arguments)
    assert engine.calls == [("load", "a", {"config": "{}"}), ("unload", "b", True)]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'["load_model", []]', b'["submit", ["a"]]', b"\xff", b"null"])
def test_a_note_that_cannot_be_read_is_left_out_and_told(
    folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    journal = LoadLog(folder)
    journal.note("load_model", ["a", {}])
    journal.note("load_model", ["b", {}])
    (folder / "1").write_bytes(content)
    assert [arguments[0] for _, arguments in later(folder)] == ["b"]
    assert "cannot be read" in caplog.text


def test_a_note_that_was_half_written_is_none(folder: Path) -> None:
    LoadLog(folder).note("load_model", ["a", {}])
    (folder / "2.next").write_bytes(b'["load_mod')
    assert [arguments[0] for _, arguments in later(folder)] == ["a"]


def test_where_nothing_can_be_written_the_change_is_made_all_the_same(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = LoadLog(folder)
    journal.note("load_model", ["a", {}])
    (folder / "2").mkdir()  # nothing can be put in its place
    (folder / "2" / "x").touch()
    journal.note("load_model", ["b", {}])
    assert "'b' was changed" in caplog.text
    assert [change.arguments[0] for change in journal.changes()] == ["a"]


def test_threads_note_at_the_same_time(folder: Path) -> None:
    journal = LoadLog(folder)
    with ThreadPoolExecutor(8) as pool:
        for number in range(200):
            pool.submit(journal.note, "load_model", [f"m{number % 20}", {"config": str(number)}])
    assert sorted(arguments[0] for _, arguments in later(folder)) == sorted(f"m{number}" for number in range(20))
    assert len(list(folder.iterdir())) == 20
