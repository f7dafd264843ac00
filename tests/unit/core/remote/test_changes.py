"""Changes of several engines: made by all, or by the one that has the model; the log for a restarted engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.remote.remote_parts import Pooled, ServedEngine, pooled
from tests.waiting import until
from trident.core.errors import AlreadyLoaded, InvalidRequest, ModelLoadFailed
from trident.core.observability.log import LogLevels
from trident.core.remote.calls import CALLS, EngineGone
from trident.core.remote.changes import ControlChange, ControlLog, Restoration, own_changes
from trident.core.shared_memory import RegionKind

LEVELS = LogLevels(verbose=0)


class Models(ServedEngine):
    """An engine that has the models of the start, and those that it has loaded since."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.versions = dict.fromkeys(names, (1,))

    def load_model(self, name: str, parameters: dict[str, Any]) -> None:
        super().load_model(name, parameters)
        self._have({**self.versions, name: (1,)})

    def load_directory(self, name: str, directory: str, origin: str) -> None:
        if name in self.versions:
            raise AlreadyLoaded("it is loaded")
        super().load_directory(name, directory, origin)
        self._have({**self.versions, name: (1,)})

    def unload_model(self, name: str, unload_dependents: bool, *, wait: bool = False) -> None:
        super().unload_model(name, unload_dependents)
        self._have({each: numbers for each, numbers in self.versions.items() if each != name})

    def _have(self, versions: dict[str, tuple[int, ...]]) -> None:
        self.versions = versions
        self.generation += 1

    def register_system_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(("register", name))

    def unregister_regions(self, kind: RegionKind, name: str) -> None:
        self.calls.append(("unregister", name))


@pytest.fixture
def engines() -> list[Models]:
    return [Models("simple"), Models("simple")]


@pytest.fixture
def pool(engines: list[Models], tmp_path: Path) -> Iterator[Pooled]:
    with pooled(tmp_path, engines) as found:
        yield found


def later(folder: Path) -> list[tuple[str, list[Any]]]:
    """The changes that the next engine reads."""
    return [(change.call.name, change.arguments) for change in ControlLog(folder).changes()]


def log_of(tmp_path: Path) -> list[tuple[str, Any]]:
    return [(call, arguments[0]) for call, arguments in later(tmp_path / "changes")]


def test_all_engines_make_a_change_and_it_is_noted(pool: Pooled, engines: list[Models], tmp_path: Path) -> None:
    pool[0].load_model("m", {"config": "{}"})
    pool[0].change_log(LEVELS)
    assert [engine.calls for engine in engines] == [[("load", "m", {"config": "{}"}), ("change_log", LEVELS)]] * 2
    assert log_of(tmp_path) == [("load_model", "m"), ("change_log", LEVELS)]


def test_change_of_a_dead_front_end_reaches_all_engines(engines: list[Models], tmp_path: Path) -> None:
    log = ControlLog(tmp_path / "changes")
    with log.begun(ControlChange(CALLS["load_model"], ["m", {}])):
        engines[0].versions["m"] = (1,)
        (record,) = (tmp_path / "changes").glob("*.begun")
        content = record.read_bytes()
    record.write_bytes(content)  # the front end died
    with pooled(tmp_path, engines) as (pool, _):
        until(lambda: log_of(tmp_path) == [("load_model", "m")] and not log.unfinished())
        assert [engine.calls for engine in engines] == [[("load", "m", {})]] * 2
        pool.unload_model("m", False)
        assert log.unfinished() == []


def test_load_that_an_engine_refuses_is_reverted(pool: Pooled, engines: list[Models], tmp_path: Path) -> None:
    engines[0].refusal = ModelLoadFailed("no such model")
    with pytest.raises(ModelLoadFailed, match="no such model"):
        pool[0].load_model("m", {})
    assert engines[1].calls == []
    engines[0].refusal, engines[1].refusal = None, ModelLoadFailed("no memory")
    with pytest.raises(ModelLoadFailed, match="no memory"):
        pool[0].load_model("m", {})
    assert engines[0].calls == [("load", "m", {}), ("unload", "m", False)]
    assert log_of(tmp_path) == []


def test_reload_that_a_later_engine_refuses_restores_the_earlier_load(pool: Pooled, engines: list[Models]) -> None:
    pool[0].load_model("m", {"config": "1"})
    engines[1].refusal = ModelLoadFailed("no memory")
    with pytest.raises(ModelLoadFailed):
        pool[0].load_model("m", {"config": "2"})
    assert [call[2] for call in engines[0].calls] == [{"config": "1"}, {"config": "2"}, {"config": "1"}]
    with pytest.raises(ModelLoadFailed):
        pool[0].load_model("simple", {"config": "2"})  # loaded at the start
    assert engines[0].calls[-1] == ("load", "simple", {})


def test_region_that_an_engine_refuses_is_unregistered_in_the_others(pool: Pooled, engines: list[Models]) -> None:
    engines[1].refusal = InvalidRequest("no such object")
    with pytest.raises(InvalidRequest, match="no such object"):
        pool[0].register_system_region("r", "/key", 0, 4)
    assert engines[0].calls == [("register", "r"), ("unregister", "r")]


def test_change_without_the_other_engine_is_recorded(pool: Pooled, engines: list[Models], tmp_path: Path) -> None:
    front, those = pool
    those[0].end()
    until(lambda: front._engines[0].connection is None)
    front.unload_model("simple", False)
    assert engines[1].calls == [("unload", "simple", False)]
    assert log_of(tmp_path) == [("unload_model", "simple")]
    those[1].end()
    until(lambda: front._engines[1].connection is None)
    with pytest.raises(EngineGone):
        front.unload_model("simple", False)


# --- a restarted engine


def test_restarted_engine_repeats_the_changes_it_missed_once(
    pool: Pooled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    front, _ = pool
    front.load_model("m", {"config": "{}"})
    front.register_system_region("a", "/key", 0, 4)
    front.register_system_region("b", "/key", 0, 4)
    front.unregister_regions(RegionKind.SYSTEM, "a")
    front.change_trace("", {"trace_rate": 5})
    front.change_trace("", {"trace_count": 7})
    engine = Models("simple")
    restoration = Restoration(engine, ControlLog(tmp_path / "changes"))
    assert restoration.is_needed
    restoration.repeat(of_models=False)
    changes = {"trace_rate": 5, "trace_count": 7}
    assert engine.calls == [("register", "b"), ("change_trace", "", changes)]
    restoration.repeat(of_models=True)
    assert engine.calls[2:] == [("load", "m", {"config": "{}"})]
    front.unload_model("m", False)
    front.unregister_regions(RegionKind.SYSTEM, "")
    for of_models in (False, True):
        restoration.repeat(of_models=of_models)
    assert engine.calls[3:] == [("unregister", "b"), ("unload", "m", False)]
    front.load_model("m", {})
    engine.refusal = ModelLoadFailed("the file is gone")
    restoration.repeat(of_models=True)
    assert "'m' could not be restored: the file is gone" in caplog.text


@pytest.fixture
def placed_engines() -> list[Models]:
    return [Models(), Models()]


@pytest.fixture
def placed_pool(placed_engines: list[Models], tmp_path: Path) -> Iterator[Pooled]:
    with pooled(tmp_path, placed_engines, by_model=True) as found:
        yield found


def names(placed_engines: list[Models]) -> list[list[str]]:
    return [sorted(engine.versions) for engine in placed_engines]


def test_model_is_loaded_in_the_engine_with_the_fewest_models(
    placed_pool: Pooled, placed_engines: list[Models]
) -> None:
    for name in "abc":
        placed_pool[0].load_directory(name, f"/{name}", f"/{name}/model")
    assert names(placed_engines) == [["a", "c"], ["b"]]
    placed_pool[0].unload_model("a", True, wait=True)
    placed_pool[0].unload_model("c", True, wait=True)
    assert names(placed_engines) == [[], ["b"]]
    with pytest.raises(AlreadyLoaded):
        placed_pool[0].load_directory("b", "/other", "/other")
    placed_pool[0].load_directory("d", "/d", "/d/model")
    assert names(placed_engines) == [["d"], ["b"]]
    assert placed_pool[0].directories() == {"b": "/b/model", "d": "/d/model"}


def test_failed_load_does_not_count_for_placement(placed_pool: Pooled, placed_engines: list[Models]) -> None:
    for engine in placed_engines:
        engine.refusal = ModelLoadFailed("the weights are broken")
    with pytest.raises(ModelLoadFailed, match="the weights are broken"):
        placed_pool[0].load_directory("a", "/a", "/a")
    for engine in placed_engines:
        engine.refusal = None
    placed_pool[0].load_directory("b", "/b", "/b")
    assert names(placed_engines) == [["b"], []]
    placed_pool[0].unload_model("none", True)  # no error, as in one engine


def test_load_of_a_dead_front_end_is_recovered(
    placed_pool: Pooled, placed_engines: list[Models], tmp_path: Path
) -> None:
    call = ControlChange(CALLS["load_directory"], ["a", "/a", "/a/model"])
    with ControlLog(own_changes(tmp_path / "changes", 1)).begun(call):
        placed_engines[1].load_directory("a", "/a", "/a/model")
        assert placed_pool[0].directories() == {}
        with pytest.raises(AlreadyLoaded):
            placed_pool[0].load_directory("a", "/a", "/a/model")
        assert names(placed_engines) == [[], ["a"]]
        assert placed_pool[0].directories() == {"a": "/a/model"}
    placed_pool[0].unload_model("a", True, wait=True)
    assert names(placed_engines) == [[], []]


def test_directories_are_restored_before_the_start_if_they_exist(folder: Path) -> None:
    control_log = ControlLog(folder)
    note(control_log, "load_directory", "a", "/a", "/a/model")
    note(control_log, "load_model", "b", {})
    engine = Models("there")
    note(control_log, "load_directory", "there", "/there", "/there/model")
    restoration = Restoration(engine, control_log)
    restoration.repeat(of_models=False)
    assert engine.calls == [("load_directory", "a", "/a")]
    restoration.repeat(of_models=True)
    assert engine.calls[1:] == [("load", "b", {})]
    engine.refusal = ModelLoadFailed("there is no directory /gone")
    note(control_log, "load_directory", "gone", "/gone", "/gone/model")
    restoration.repeat(of_models=False)
    assert [each.title for each in control_log.changes()] == ["a", "b", "there"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "changes"


def note(control_log: ControlLog, call: str, *arguments: Any) -> None:
    control_log.note(ControlChange(CALLS[call], list(arguments)))


def test_the_log_keeps_the_last_change_of_each_model_in_order(folder: Path) -> None:
    control_log = ControlLog(folder)
    note(control_log, "load_model", "a", {})
    note(control_log, "load_model", "b", {})
    note(control_log, "unload_model", "a", False, False)
    control_log = ControlLog(folder)  # as of the next process
    note(control_log, "load_directory", "c", "/models/c", "/c")
    note(control_log, "load_model", "b", {"config": '{"max_batch_size": 3}'})
    changes = [
        ("unload_model", ["a", False, False]),
        ("load_directory", ["c", "/models/c", "/c"]),
        ("load_model", ["b", {"config": '{"max_batch_size": 3}'}]),
    ]
    assert [(change.call.name, change.arguments) for change in control_log.changes()] == changes
    assert later(folder) == changes
    assert len(list(folder.iterdir())) == len(changes)
    assert control_log.unloaded() == {"a"}


def test_change_file_number_may_be_reused_by_another_process(folder: Path) -> None:
    one, other = ControlLog(folder), ControlLog(folder)
    note(one, "load_model", "a", {})
    assert other.subjects() == [("model", "a")]
    one.forget(("model", "a"))
    note(one, "load_model", "b", {})
    assert other.subjects() == [("model", "b")]
    other.forget(("model", "b"))
    assert one.changes() == []


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a/b", ".", "", "1", "1.next", "n" * 5000, "\udcff", "\0"], ids=range(10)
)
def test_a_model_name_is_never_used_as_a_path(folder: Path, name: str) -> None:
    note(ControlLog(folder), "load_model", name, {})
    assert later(folder) == [("load_model", [name, {}])]
    assert [path.parent for path in folder.parent.rglob("*") if path.is_file()] == [folder]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'["load_model", []]', b'["submit", ["a"]]', b"null"])
def test_malformed_record_is_skipped_and_logged(folder: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    control_log = ControlLog(folder)
    note(control_log, "load_model", "a", {})
    note(control_log, "load_model", "b", {})
    (folder / "1").write_bytes(content)
    assert [arguments[0] for _, arguments in later(folder)] == ["b"]
    assert "cannot read a file" in caplog.text


def test_failure_to_record_a_change_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    control_log = ControlLog(folder)
    note(control_log, "load_model", "a", {})
    (folder / f"{os.getpid()}.next").mkdir()  # nothing can replace it
    note(control_log, "load_model", "b", {})
    assert "change of 'b'" in caplog.text
    assert [change.arguments[0] for change in control_log.changes()] == ["a"]
