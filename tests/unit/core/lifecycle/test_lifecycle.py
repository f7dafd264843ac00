"""Loading at start in each control mode, and load and unload requests afterwards."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import (
    BROKEN,
    CONFIG,
    LIMIT_S,
    MORE_INSTANCES,
    Bench,
    living,
    put,
    threads,
    weight_of,
    write,
)
from tests.waiting import until
from trident.core.errors import ModelLoading, ModelNotFound, ModelNotReady, RepositoryUnavailable, ServerError
from trident.core.lifecycle.options import Readiness
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.repository.sources import LocalSource

JSON = """{"backend": "fake", "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
"output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
"parameters": {"by": {"string_value": "us"}}}"""

explicit = partial(living, control_mode="explicit")


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for files of load requests, which must be empty at the end."""
    path = tmp_path_factory.mktemp("temporary")
    before, tempfile.tempdir = tempfile.tempdir, str(path)
    yield path
    tempfile.tempdir = before
    assert list(path.iterdir()) == []


def failure(bench: Bench, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> str:
    with pytest.raises(ServerError) as caught:
        bench.load(name, config, files)
    return f"{type(caught.value).__name__}: {caught.value.message}"


def polled_in_vain(name: str) -> str:
    return f"ModelLoadFailed: failed to load '{name}', failed to poll from model repository"


def is_overridden(bench: Bench) -> bool:
    return "by" in bench.engine.model_config("m").parse().parameters


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_all_models_are_loaded_at_start(tmp_path: Path, mode: str) -> None:
    write(tmp_path, "a", 1)
    write(tmp_path, "b", 2)
    (tmp_path / "a file").touch()
    with living(tmp_path, control_mode=mode) as bench:
        assert bench.index() == ["a 1 READY", "b 1 READY"]
        assert bench.engine.phase().done == 2
        for call in (bench.load, lambda name: bench.engine.unload_model(name, False)):
            with pytest.raises(ModelNotReady, match=r"^explicit model load / unload is not allowed if polling is en"):
                call("a")


def test_explicit_mode_loads_only_the_named_models(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path, name, 1)
    with explicit(tmp_path, load_models=("c", "a", "c")) as bench:
        assert bench.engine.is_ready()
        assert sorted(bench.backend.loads) == ["a:1=1", "c:1=1"]
        assert bench.index() == ["a 1 READY", "b", "c 1 READY"]
    with explicit(tmp_path) as bench:
        assert bench.engine.is_ready()
        assert bench.index() == ["a", "b", "c"]
    for named in (("*",), ("*", "*")):
        with explicit(tmp_path, load_models=named) as bench:
            assert bench.index() == ["a 1 READY", "b 1 READY", "c 1 READY"]
            assert failure(bench, "*") == polled_in_vain("*")


def test_a_model_that_cannot_be_loaded_fails_the_start_and_not_the_other_models(tmp_path: Path) -> None:
    write(tmp_path, "good", 1)
    write(tmp_path, "bad", BROKEN)
    with explicit(tmp_path, load_models=("none", "bad", "good")) as bench:
        assert bench.engine.phase().name == Phase.FAILED
        assert sorted(bench.engine.phase().failures) == ["bad", "none"]
        assert bench.ask("good") == 1
        assert not bench.engine.is_ready()
        put(tmp_path / "bad" / "1" / "model.fake", "2")
        bench.load("bad")
        assert bench.engine.is_ready()


def test_the_wildcard_must_be_the_only_startup_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "Wildcard model name '*' must be the ONLY startup model if specified at all."
    with explicit(tmp_path, load_models=("*", "a")) as bench:
        (reason,) = bench.engine.phase().failures.values()
        assert reason.endswith(text)
    assert text in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_a_server_without_its_repository_is_never_ready(tmp_path: Path, mode: str) -> None:
    for readiness in Readiness:
        with living(tmp_path / "none", control_mode=mode, readiness=readiness) as bench:
            assert bench.engine.phase().failures == {
                "model repository": "Unavailable: repository path is not a valid directory"
            }
            assert not bench.engine.is_ready()


def test_calls_are_refused_as_too_early_until_a_model_of_the_start_is_loaded(tmp_path: Path) -> None:
    """A client that is told that the model does not exist would not ask again."""
    write(tmp_path, "m", 1)
    write(tmp_path, "waits", 1)
    bench = Bench([tmp_path], lambda text: LocalSource(Path(text)), load_threads=1)
    engine = bench.engine
    calls = (bench.ask, engine.model_spec, engine.model_metadata, engine.model_config, engine.model_statistics)
    for call in calls:
        with pytest.raises(ModelLoading, match=r"^Server not ready$"):
            call("nope")
    with bench.backend.holding("m"):
        engine.start()
        until(lambda: bench.backend.loads == ["m:1=1"])
        for name in ("m", "waits"):
            for call in calls:
                with pytest.raises(ModelLoading, match=f"^model '{name}' is still being loaded$"):
                    call(name)
        with pytest.raises(ModelNotFound):
            bench.ask("nope")
    assert engine.wait_loaded(LIMIT_S)
    assert (bench.ask("m"), bench.ask("waits")) == (1, 1)
    engine.begin_exit()
    assert engine.finish(LIMIT_S)


def test_load_requests_are_refused_during_the_start_and_after_the_exit(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    bench = Bench([tmp_path], lambda text: LocalSource(Path(text)), control_mode="explicit", load_models=("m",))
    with bench.backend.holding("m"):
        bench.engine.start()
        until(lambda: bench.backend.loads == ["m:1=1"])
        assert bench.engine.phase().name == Phase.LOADING
        assert bench.engine.phase().model == "m"
        assert not bench.engine.is_ready()
        assert failure(bench, "m") == "ModelNotReady: Server not ready"
    assert bench.engine.wait_loaded(LIMIT_S)
    bench.load("m")
    bench.engine.begin_exit()
    assert failure(bench, "m") == "ModelNotReady: Server not ready"
    assert bench.engine.finish(LIMIT_S)
    until(lambda: threads() == [])


def test_load_directory_waits_for_the_end_of_the_start(tmp_path: Path) -> None:
    """A platform that finds a multi-model container alive loads the first model at once."""
    (tmp_path / "repository").mkdir()
    write(tmp_path / "elsewhere", "m", 1)
    may_open = threading.Event()

    def open_source(text: str) -> LocalSource:
        assert may_open.wait(LIMIT_S)
        return LocalSource(Path(text))

    bench = Bench([tmp_path / "repository"], open_source, control_mode="explicit")
    bench.engine.start()
    assert bench.engine.is_live()
    assert bench.engine.phase().name == Phase.STARTING
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(bench.engine.load_directory, "cat", str(tmp_path / "elsewhere" / "m"))
        with pytest.raises(ModelNotReady, match="Server not ready"):
            bench.engine.load_model("m", {})
        assert not loading.done()
        may_open.set()
        loading.result(LIMIT_S)
    assert bench.ask("cat") == 1
    bench.engine.begin_exit()
    assert bench.engine.finish(LIMIT_S)
    until(lambda: threads() == [])


def test_a_failed_load_has_the_text_of_triton(tmp_path: Path) -> None:
    write(tmp_path, "broken", BROKEN)
    write(tmp_path, "typo", 1, config="max_batch_sise: 8")
    write(tmp_path, "empty")
    with explicit(tmp_path) as bench:
        assert failure(bench, "none") == polled_in_vain("none")
        assert failure(bench, "typo") == polled_in_vain("typo")
        assert failure(bench, "empty") == "ModelLoadFailed: failed to load 'empty', no version is available"
        assert failure(bench, "broken") == (
            "InvalidRequest: load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: the weights "
            "are broken;\n"
        )
        assert bench.index()[0] == "broken 1 UNAVAILABLE Internal: the weights are broken"
        assert bench.index()[1].startswith("empty UNAVAILABLE Invalid argument: at least one version must be available")
        assert "max_batch_sise" in bench.index()[2]


def test_the_phase_names_the_models_whose_last_load_failed(tmp_path: Path) -> None:
    write(tmp_path, "good", 1)
    write(tmp_path, "bad", BROKEN)
    with explicit(tmp_path, load_models=("good",), readiness=Readiness.STRICT) as bench:
        assert failure(bench, "bad").startswith("InvalidRequest: load failed for model 'bad'")
        assert not bench.engine.is_ready()
        assert bench.engine.phase() == ServingPhase(
            name=Phase.READY,
            done=1,
            total=1,
            failures={"bad": "version 1 is UNAVAILABLE: Internal: the weights are broken"},
        )
        put(tmp_path / "bad" / "1" / "model.fake", "2")
        with ThreadPoolExecutor(1) as pool, bench.backend.holding("bad"):
            loading = pool.submit(bench.load, "bad")
            until(lambda: bench.backend.loads[-1] == "bad:1=2")
            assert bench.engine.phase() == ServingPhase(name=Phase.READY, model="bad", done=1, total=1)
            assert not bench.engine.is_ready()
        loading.result(LIMIT_S)
        assert bench.engine.is_ready()
        assert bench.engine.phase() == ServingPhase(name=Phase.READY, done=1, total=1)


def test_the_phase_names_a_failure_of_the_start_until_it_is_repaired(tmp_path: Path) -> None:
    write(tmp_path, "bad", BROKEN)
    with explicit(tmp_path, load_models=("bad", "none")) as bench:
        assert bench.engine.phase().failures == {
            "bad": "version 1 is UNAVAILABLE: Internal: the weights are broken",
            "none": "model not found in any model repository",
        }
        put(tmp_path / "bad" / "1" / "model.fake", "2")
        bench.load("bad")
        assert list(bench.engine.phase().failures) == ["none"]


def test_a_model_can_be_loaded_and_unloaded(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with pytest.raises(ModelNotFound):
            bench.ask("m")
        bench.load("m")
        version = bench.version("m")
        bench.load("m")
        assert bench.version("m") is version
        assert bench.ask("m") == 1
        for name in ("m", "m", "none"):
            bench.engine.unload_model(name, False)
        bench.until_index("m 1 UNAVAILABLE unloaded")
        assert bench.engine.is_ready()
        with pytest.raises(ModelNotFound, match=r"^Request for unknown model: 'm' has no available versions$"):
            bench.ask("m")
        bench.load("m")
        assert bench.index() == ["m 1 READY"]


def test_a_configuration_override_stays_until_the_files_change_or_the_model_is_unloaded(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        bench.load("m", JSON)
        assert is_overridden(bench)
        bench.load("m")
        assert is_overridden(bench)
        assert bench.backend.loads == ["m:1=1"]
        bench.load("m", JSON)
        assert bench.backend.loads == ["m:1=1"] * 2
        put(tmp_path / "m" / "config.pbtxt", CONFIG)
        bench.load("m")
        assert not is_overridden(bench)
        bench.load("m", JSON)
        bench.engine.unload_model("m", False)
        bench.load("m")
        assert not is_overridden(bench)


def test_a_wrong_configuration_override_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        bench.load("m")
        for config in ("{", '{"max_batch_sise": 8}', '{"name": "other", "backend": "fake"}', "{}"):
            assert failure(bench, "m", config) == polled_in_vain("m")
        assert bench.ask("m") == 1
        bench.load("m")
        assert bench.index() == ["m 1 READY"]
        assert bench.backend.loads == ["m:1=1"]


NOT_JSON = "Invalid argument: Invalid config override: "


@pytest.mark.parametrize("content", [None, 1, BROKEN])
def test_the_index_shows_the_reason_of_the_last_failure(tmp_path: Path, content: int | str | None) -> None:
    """For a model that was never loaded, one that serves, and one whose version has failed."""
    write(tmp_path, "m", content or 1)
    state = {None: "m UNAVAILABLE", 1: "m 1 READY", BROKEN: "m 1 UNAVAILABLE"}[content]
    with explicit(tmp_path) as bench:
        if content == BROKEN:
            assert failure(bench, "m").startswith("InvalidRequest: load failed for model 'm'")
        elif content:
            bench.load("m")
        for config, reason in (
            ("{", NOT_JSON),
            ('{"name": "zz"}', "Invalid argument: unexpected directory name 'm' for model 'zz'"),
            ('{"foo": 1}', NOT_JSON + 'Message type "inference.ModelConfig" has no field named "foo"'),
            ("[]", NOT_JSON),
        ):
            assert failure(bench, "m", config) == polled_in_vain("m")
            (line,) = bench.index()
            assert line.startswith(f"{state} {reason}")
        put(tmp_path / "m" / "1" / "model.fake", BROKEN)
        assert failure(bench, "m").startswith("InvalidRequest: load failed for model 'm'")
        assert bench.index() == [f"m 1 {'READY' if content == 1 else 'UNAVAILABLE'} Internal: the weights are broken"]
        put(tmp_path / "m" / "1" / "model.fake", "2")
        bench.load("m")
        assert bench.index() == ["m 1 READY"]


def test_files_of_a_load_request_replace_the_whole_directory(tmp_path: Path, temporary: Path) -> None:
    write(tmp_path, "m", 1, 2)
    with explicit(tmp_path) as bench:
        bench.load("m")
        bench.load("m", JSON, {"7/model.fake": b"70"})
        bench.until_index("m 2 UNAVAILABLE unloaded", "m 7 READY")
        assert bench.ask("m") == 70
        # The repository is read again, which has another model than the request.
        bench.load("m")
        assert bench.ask("m") == 2
        until(lambda: list(temporary.iterdir()) == [])
        bench.load("m", JSON, {"7/model.fake": b"71"})
        assert bench.ask("m") == 71
        assert len(list(temporary.iterdir())) == 1
        bench.engine.unload_model("m", False)
        until(lambda: list(temporary.iterdir()) == [])
        # A model that no repository has.
        bench.load("new", JSON, {"1/model.fake": b"5"})
        assert bench.ask("new") == 5
        assert failure(bench, "new") == polled_in_vain("new")
        assert bench.ask("new") == 5


def test_files_of_a_failed_load_request_are_removed(tmp_path: Path, temporary: Path) -> None:
    with explicit(tmp_path) as bench:
        assert failure(bench, "m", JSON, {"1/model.fake": BROKEN.encode()}).startswith("InvalidRequest: load failed")
        assert failure(bench, "m", '{"max_batch_size": -1}', {"1/model.fake": b"1"}) == polled_in_vain("m")
        assert failure(bench, "m", JSON, {"../m/1/model.fake": b"1"}) == (
            "InvalidRequest: Invalid file parameter 'file:../m/1/model.fake' with normalized path '../m/1/model.fake' "
            "must stay within model directory."
        )
        assert failure(bench, "m", JSON, {"no version": b"1"}) == (
            "ModelLoadFailed: failed to load 'm', no version is available"
        )
        assert list(temporary.iterdir()) == []


def test_instances_change_in_place(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path, load_models=("m",)) as bench:
        version = bench.version("m")
        put(tmp_path / "m" / "config.pbtxt", MORE_INSTANCES)
        bench.load("m")
        assert bench.version("m") is version
        assert bench.backend.loads == ["m:1=1"]
        assert [group.count for group in bench.engine.model_config("m").parse().instance_group] == [3]
        # All three execute at once.
        with bench.running("m") as first:
            others = [bench.submit("m") for _ in range(2)]
            for _ in others:
                assert bench.backend.models[0].begun.acquire(timeout=LIMIT_S)
        assert [weight_of(responses) for responses in (first, *others)] == [1] * 3


class Misspelled(LocalSource):
    """An empty source whose place in the storage does not exist."""

    def check_exists(self) -> None:
        raise RepositoryUnavailable("there is nothing here", hint="did you mean there?")


@pytest.mark.parametrize(("mode", "phase"), [("none", Phase.FAILED), ("poll", Phase.READY), ("explicit", Phase.READY)])
def test_missing_place_of_a_repository_fails_the_start_in_mode_none(
    tmp_path: Path, mode: str, phase: Phase, caplog: pytest.LogCaptureFixture
) -> None:
    with living(tmp_path, open_source=lambda text: Misspelled(Path(text)), control_mode=mode) as bench:
        assert bench.engine.phase().name is phase
        reasons = {"model repository": "Unavailable: there is nothing here"} if phase is Phase.FAILED else {}
        assert bench.engine.phase().failures == reasons
    levels = [each.levelname for each in caplog.records if each.getMessage().endswith("here: did you mean there?")]
    assert levels == ["ERROR" if phase is Phase.FAILED else "WARNING"]


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_empty_local_repository_is_ready(tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    with living(tmp_path, control_mode=mode) as bench:
        assert bench.engine.phase().name is Phase.READY
    [warning] = [text for text in caplog.messages if text.startswith(f"there is no model in {tmp_path}: ")]
    assert "expected MODEL/1/model.onnx" in warning
