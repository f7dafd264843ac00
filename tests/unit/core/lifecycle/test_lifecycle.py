"""The lifecycle of a server's models: start, readiness, load requests, and the end."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.threads import server_threads
from tests.unit.core.lifecycle.lifecycle_bench import (
    BROKEN,
    CONFIG,
    LIMIT_S,
    Bench,
    living,
    put,
    unstarted,
    weight_of,
    write,
)
from tests.unit.pending_requests import pending_request
from tests.waiting import until
from trident.core.errors import (
    InvalidRequest,
    ModelLoadFailed,
    ModelLoading,
    ModelNotFound,
    ModelNotReady,
    RepositoryUnavailable,
    ServerError,
    ServerStopping,
)
from trident.core.lifecycle.attempt import LoadAttempt
from trident.core.lifecycle.long_executions import LongExecutions
from trident.core.lifecycle.options import Readiness
from trident.core.lifecycle.state import Phase
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.sources import Fetched, LocalSource, SourceFile

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


@pytest.mark.parametrize("cure", ["load", "unload"])
@pytest.mark.parametrize("mode", ["explicit", "demand"])
def test_missing_startup_model_keeps_the_server_unready(tmp_path: Path, mode: str, cure: str) -> None:
    write(tmp_path, "m", 1)
    for readiness in Readiness:
        with living(tmp_path, control_mode=mode, load_models=("m", "late"), readiness=readiness) as bench:
            assert bench.engine.phase().failures == {"late": "model not found in any model repository"}
            assert bench.engine.is_ready() is (readiness is not Readiness.SERVING)
            if cure == "load":
                write(tmp_path, "late", 1)
                bench.load("late")
            else:
                bench.engine.unload_model("late", False)
            assert bench.engine.is_ready()
        shutil.rmtree(tmp_path / "late", ignore_errors=True)


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


def test_calls_are_refused_until_a_startup_model_is_loaded(tmp_path: Path) -> None:
    """A client that is told that the model does not exist would not ask again."""
    write(tmp_path, "m", 1)
    write(tmp_path, "waits", 1)
    with unstarted(tmp_path, load_threads=1) as bench:
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


def test_load_requests_are_refused_during_the_start_and_after_the_exit(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with unstarted(tmp_path, control_mode="explicit", load_models=("m",)) as bench:
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


def test_load_directory_waits_for_the_end_of_the_start(tmp_path: Path) -> None:
    """A platform that finds a multi-model container alive loads the first model at once."""
    (tmp_path / "repository").mkdir()
    write(tmp_path / "elsewhere", "m", 1)
    may_open = threading.Event()

    def open_source(text: str) -> LocalSource:
        assert may_open.wait(LIMIT_S)
        return LocalSource(Path(text))

    with unstarted(tmp_path / "repository", open_source=open_source, control_mode="demand") as bench:
        bench.engine.start()
        assert bench.engine.is_live()
        assert bench.engine.phase().name == Phase.STARTING
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(bench.engine.load_directory, "cat", str(tmp_path / "elsewhere" / "m"), "m")
            with pytest.raises(ModelNotReady, match="Server not ready"):
                bench.engine.load_model("m", {})
            assert not loading.done()
            may_open.set()
            loading.result(LIMIT_S)
        assert bench.ask("cat") == 1


def test_files_of_a_failed_load_request_are_removed(tmp_path: Path, temporary: Path) -> None:
    with explicit(tmp_path) as bench:
        assert failure(bench, "m", JSON, {"1/model.fake": BROKEN.encode()}).startswith("InvalidRequest: load failed")
        assert failure(bench, "m", '{"max_batch_size": -1}', {"1/model.fake": b"1"}) == polled_in_vain("m")
        assert failure(bench, "m", JSON, {"../m/1/model.fake": b"1"}) == (
            "InvalidRequest: Invalid file parameter 'file:../m/1/model.fake' with normalized path '../m/1/model.fake' "
            "must stay within model directory."
        )
        assert failure(bench, "m", JSON, {"no version": b"1"}) == (
            "InvalidRequest: load failed for model 'm': at least one version must be available under the version "
            "policy of model 'm'\n"
        )
        assert list(temporary.iterdir()) == []


class Misspelled(LocalSource):
    """An empty source whose place in the storage does not exist."""

    def check_exists(self) -> None:
        raise RepositoryUnavailable("there is nothing here", hint="did you mean there?")


@pytest.mark.parametrize(("mode", "phase"), [("none", Phase.FAILED), ("poll", Phase.READY), ("explicit", Phase.READY)])
def test_missing_repository_fails_the_start_in_mode_none(
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


def test_with_namespaces_models_of_one_name_coexist(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "m", 1)
    write(second, "m", 2)
    write(second, "own", 3)
    with explicit(first, second, namespacing=True) as bench:
        bench.load("m")
        bench.load("own")
        assert sorted(bench.backend.loads) == ["m:1=1", "m:1=2", "own:1=3"]
        assert bench.index() == ["m 1 READY", "m 1 READY", "own 1 READY"]
        assert bench.ask("own") == 3
        with pytest.raises(InvalidRequest) as caught:
            bench.ask("m")
        assert caught.value.message == (
            "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
        )
        with pytest.raises(InvalidRequest, match=r"^Request for unknown model: 'none' is not found$"):
            bench.ask("none")
        bench.engine.unload_model("m", False)
        bench.until_index("m 1 UNAVAILABLE unloaded", "m 1 UNAVAILABLE unloaded", "own 1 READY")


def test_without_namespaces_a_name_that_is_not_unique_is_not_loaded(tmp_path: Path) -> None:
    for repository in ("first", "second"):
        write(tmp_path / repository, "m", 1)
    with explicit(tmp_path / "first", tmp_path / "second") as bench:
        with pytest.raises(ModelLoadFailed, match=r"^failed to load 'm', failed to poll from model repository$"):
            bench.load("m")
        assert bench.index() == ["m UNAVAILABLE model appears in two or more repositories"]
        assert bench.backend.loads == []


class Faulty(LocalSource):
    """A source with a bug that one model triggers."""

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        if model == "bad":
            raise KeyError("a bug")
        return super().fetch(model, files, version)


def test_a_bug_fails_one_model_and_not_the_start(tmp_path: Path) -> None:
    write(tmp_path, "bad", 1)
    write(tmp_path, "good", 1)
    with living(tmp_path, open_source=lambda text: Faulty(Path(text)), load_threads=1) as bench:
        assert bench.engine.phase().failures == {"bad": "Internal: 'a bug'"}
        assert bench.index() == ["bad UNAVAILABLE Internal: 'a bug'", "good 1 READY"]
        assert bench.ask("good") == 1


SECOND = 1_000_000_000


def no_other(name: str, version: int) -> ModelVersion:
    raise AssertionError


def test_long_execution_is_logged_after_ten_seconds_and_each_doubling(
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = ModelVersion("m", 1, "a test", no_other)
    batch = [pending_request(f"r{number}") for number in range(10)]
    version.statistics.begin_execution("m_0", batch, 5 * SECOND)
    executions = LongExecutions(lambda: [version], lambda: [])
    logged = []
    for now_s in range(5, 100):
        executions.look(now_s * SECOND)
        if caplog.messages:
            logged.append(now_s - 5)
            text = caplog.messages[0]
            caplog.clear()
    assert logged == [10, 20, 40, 80]
    assert text == (
        "model 'm' version 1: an execution on instance 'm_0' has run for 80 s; its batch has 10, request ids: 'r0', "
        "'r1', 'r2', 'r3', 'r4', 'r5', 'r6', 'r7' and 2 others"
    )
    version.statistics.end_execution("m_0")
    version.statistics.begin_execution("m_0", batch, 100 * SECOND)
    executions.look(105 * SECOND)
    executions.look(110 * SECOND)
    assert len(caplog.messages) == 1


def test_long_load_step_is_logged_like_an_execution(caplog: pytest.LogCaptureFixture) -> None:
    version = ModelVersion("m", 1, "a test", no_other)
    version.attempt = LoadAttempt("m", clock=lambda: 5 * SECOND)
    loads = LongExecutions(lambda: [], lambda: [version])
    loads.look(100 * SECOND)
    version.attempt.begin("golden request 'g' on instance 'm_0'")
    for now_s in range(5, 30):
        loads.look(now_s * SECOND)
    assert caplog.messages == [
        f"model 'm' version 1 is still being loaded: golden request 'g' on instance 'm_0' has taken {seconds} s"
        for seconds in (10, 20)
    ]


# --- loads that do not end


def test_a_load_that_takes_longer_than_the_limit_fails(tmp_path: Path) -> None:
    write(tmp_path, "held", 1)
    write(tmp_path, "m", 2)
    with unstarted(tmp_path, load_timeout_s=0.05) as bench, bench.backend.holding("held"):
        bench.engine.start()
        assert bench.engine.wait_loaded(LIMIT_S)
        reason = "Internal: the load of its weights took longer than --model-load-timeout-secs allows (0.05 s)"
        assert bench.index() == [f"held 1 UNAVAILABLE {reason}", "m 1 READY"]


def test_newer_files_replace_an_endless_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path, "m", 1)
    with unstarted(tmp_path, control_mode="poll", poll_secs=0.01) as bench, bench.backend.holding("m=1"):
        bench.engine.start()
        until(lambda: bench.backend.loads == ["m:1=1"])
        put(folder / "1" / "model.fake", "2")
        assert bench.engine.wait_loaded(LIMIT_S)
        assert bench.engine.phase().name == Phase.READY
        assert bench.ask("m") == 2
        assert "restarting the load of 'm': its files have changed" in caplog.text
        with bench.backend.holding("m=3"):
            put(folder / "1" / "model.fake", "3")
            until(lambda: bench.backend.loads[-1] == "m:1=3")
            assert bench.ask("m") == 2
            put(folder / "1" / "model.fake", "4")
            until(lambda: bench.ask("m") == 4)
        with bench.backend.holding("m=5"):
            put(folder / "1" / "model.fake", "5")
            until(lambda: bench.backend.loads[-1] == "m:1=5")
            shutil.rmtree(folder)
            bench.until_index()


@pytest.mark.parametrize("serves", [False, True])
def test_unload_cancels_the_load_of_its_model(tmp_path: Path, serves: bool) -> None:
    folder = write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench, bench.backend.holding("m=2"), ThreadPoolExecutor(1) as clients:
        if serves:
            bench.load("m")
        put(folder / "1" / "model.fake", "2")
        load = clients.submit(bench.load, "m")
        until(lambda: bench.backend.loads[-1:] == ["m:1=2"])
        bench.engine.unload_model("m", False)
        with pytest.raises(InvalidRequest, match="Internal: the model was unloaded while it was being loaded"):
            load.result(LIMIT_S)
        until(lambda: bench.index() == (["m 1 UNAVAILABLE unloaded"] if serves else ["m"]))
        put(folder / "1" / "model.fake", "3")
        bench.load("m")
        assert bench.ask("m") == 3


def test_an_unload_ends_a_load_that_waits_for_another_one(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "other", 1)
    with explicit(tmp_path, load_threads=1) as bench, ThreadPoolExecutor(2) as clients, bench.backend.holding("other"):
        loads = [clients.submit(bench.load, "other")]
        until(lambda: bench.backend.loads == ["other:1=1"])
        loads.append(clients.submit(bench.load, "m"))
        until(lambda: "m 1 LOADING" in bench.index())
        bench.engine.unload_model("m", False)
        with pytest.raises(InvalidRequest, match="Internal: the model was unloaded while it was being loaded"):
            loads[1].result(LIMIT_S)
    with pytest.raises(ServerError):
        bench.ask("m")


polling = partial(living, control_mode="poll")


@pytest.mark.parametrize(("readiness", "is_ready"), [(Readiness.SERVING, True), (Readiness.STRICT, False)])
def test_broken_update_keeps_the_server_ready_unless_strict(
    readiness: Readiness, is_ready: bool, tmp_path: Path
) -> None:
    write(tmp_path, "m", 1, 2)
    with polling(tmp_path, readiness=readiness) as bench:
        assert bench.engine.is_ready()
        put(tmp_path / "m" / "3" / "model.fake", BROKEN)
        bench.poll()
        assert bench.ask("m") == 2
        assert bench.engine.is_ready() is is_ready
        reason = "Internal: the weights are broken"
        assert bench.index() == ["m 2 READY", f"m 3 UNAVAILABLE {reason}"]
        assert bench.engine.phase().failures == {"m": f"version 2 is READY; version 3 is UNAVAILABLE: {reason}"}
        put(tmp_path / "m" / "3" / "model.fake", "3")
        bench.poll()
        assert bench.ask("m") == 3
        assert bench.engine.is_ready()
        assert bench.engine.phase().failures == {}


def test_readiness_started_ignores_models(tmp_path: Path) -> None:
    write(tmp_path, "m", BROKEN)
    with polling(tmp_path, readiness=Readiness.STARTED) as bench:
        assert bench.engine.is_ready()


# --- requests while models are loaded, replaced and unloaded: none fails, and one version answers each


serving_m = partial(living, control_mode="explicit", load_models=("m",))


def test_replaced_version_forwards_requests(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with serving_m(tmp_path) as bench:
        found = bench.engine.model("m")
        put(tmp_path / "m" / "1" / "model.fake", "2")
        bench.load("m")
        until(lambda: bench.backend.models[0].is_closed)
        assert weight_of(bench.submit_to(found, "m")) == 2
        bench.engine.unload_model("m", False, wait=True)
        with pytest.raises(ModelNotFound, match="'m' has no available versions"):
            weight_of(bench.submit_to(found, "m"))


def test_requests_are_refused_while_the_server_stops(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with serving_m(tmp_path) as bench:
        with bench.running("m") as running:
            bench.engine.begin_exit()
            assert not bench.engine.finish(0)
            with pytest.raises(
                ServerStopping, match="scheduler for model has stopped accepting new inference requests"
            ):
                bench.ask("m")
        assert weight_of(running) == 1


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_the_exit_does_not_wait_for_a_load(tmp_path: Path, mode: str) -> None:
    for name in ("held", "held too", "waiting"):
        write(tmp_path, name, 1)
    names = ("held", "held too", "waiting") if mode == "explicit" else ()
    with (
        unstarted(tmp_path, control_mode=mode, load_models=names, load_threads=2, poll_secs=0.01) as bench,
        bench.backend.holding("held"),
        bench.backend.holding("held too"),
    ):
        bench.engine.start()
        until(lambda: len(bench.backend.loads) == 2)
        bench.engine.begin_exit()
        assert bench.engine.finish(LIMIT_S)
        assert bench.engine.phase().name == Phase.EXITING
        assert {"trident-load-held", "trident-load-held too"} <= set(server_threads())
    # The held loads have ended and left nothing behind; a load that waited for a thread has not begun.
    assert len(bench.backend.loads) == 2


# --- poll mode: the server follows changes in the repositories, and keeps the old models when the new ones are broken


NOT_UNIQUE = "model appears in two or more repositories"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A server on a repository with model `m` of weight 1."""
    write(tmp_path, "m", 1)
    with polling(tmp_path) as bench:
        yield bench


def test_removed_failed_model_is_not_in_the_index(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    for name, weight, config in (("broken", BROKEN, CONFIG), ("typo", "1", "max_batch_sise: 8")):
        write(tmp_path, name, weight, config=config)
    with polling(tmp_path) as bench:
        assert not bench.engine.is_ready()
        shutil.rmtree(tmp_path / "broken")
        bench.poll()
        assert not bench.engine.is_ready()
        shutil.rmtree(tmp_path / "typo")
        bench.poll()
        assert bench.index() == ["m 1 READY"]
        assert bench.engine.is_ready()


def test_models_of_a_missing_repository_stay_loaded(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "m", 1)
    write(first, "typo", 1, config="max_batch_sise: 8")
    write(second, "other", 1)
    with polling(first, second) as bench:
        before = bench.index()
        first.rename(tmp_path / "away")
        put(second / "other" / "1" / "model.fake", "2")
        bench.poll()
        assert bench.index() == before
        assert not bench.engine.is_ready()
        assert (bench.ask("m"), bench.ask("other")) == (1, 2)
        (tmp_path / "away").rename(first)
        put(first / "m" / "1" / "model.fake", "3")
        bench.poll()
        assert bench.index() == before
        assert bench.ask("m") == 3


@pytest.mark.parametrize("removed", ["copy", "original"])
def test_a_model_that_is_copied_into_another_repository_is_unloaded(tmp_path: Path, removed: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "m", 1)
    second.mkdir()
    with polling(first, second) as bench:
        shutil.copytree(first / "m", second / "m")
        bench.poll()
        bench.poll()
        assert bench.index() == [f"m UNAVAILABLE {NOT_UNIQUE}"]
        assert bench.engine.is_ready()
        with pytest.raises(ModelNotReady, match=NOT_UNIQUE):
            bench.ask("m")
        shutil.rmtree((second if removed == "copy" else first) / "m")
        bench.poll()
        assert bench.index() == ["m 1 READY"]
        assert bench.ask("m") == 1
        assert bench.backend.loads == ["m:1=1", "m:1=1"]
        bench.poll()
        assert len(bench.backend.loads) == 2


def test_repeatedly_changed_model_is_queued_once(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "other", 1)
    with polling(tmp_path, load_threads=1) as bench:
        with bench.backend.holding("m"):
            put(tmp_path / "m" / "1" / "model.fake", "2")
            bench.lifecycle.poll()
            until(lambda: bench.backend.loads[-1] == "m:1=2")
            for weight in ("2", "3", BROKEN):
                put(tmp_path / "other" / "1" / "model.fake", weight)
                write(tmp_path, "gone", 1)
                bench.lifecycle.poll()
            assert len(bench.lifecycle._threads._waiting) == 2
            shutil.rmtree(tmp_path / "gone")
            bench.lifecycle.poll()
        assert bench.lifecycle._threads.wait_idle(LIMIT_S)
        assert [load for load in bench.backend.loads if not load.startswith("m:")][1:] == ["other:1=broken"]
        assert bench.index() == ["m 1 READY", "other 1 READY Internal: the weights are broken"]


def test_failing_model_is_retried_rarely_and_immediately_on_a_change(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "m" / "1" / "model.fake", BROKEN)
    for _ in range(16):
        bench.poll()
    failures = sum("failed to load 'm' version 1" in record.getMessage() for record in caplog.records)
    assert 3 <= failures <= 5
    assert bench.ask("m") == 1
    put(tmp_path / "m" / "1" / "model.fake", "2")
    bench.poll()
    assert bench.ask("m") == 2
