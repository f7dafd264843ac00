"""One model: states, plans of reloads, loads, swaps, and what leaves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import NoneType

import pytest
from google.protobuf.json_format import MessageToJson

from tests.unit.core.lifecycle.lifecycle_bench import (
    BROKEN,
    CONFIG,
    LIMIT_S,
    MORE_INSTANCES,
    Bench,
    FakeBackend,
    living,
    put,
    registry_of,
    threads,
    weight_of,
    write,
)
from tests.waiting import until
from trident.core.config.parse import parse_model_config
from trident.core.errors import InvalidRequest, ModelLoadFailed, ServerError, ServerStopping
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.model import Content, Model, Plan, Retirement, plan_reload
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.state import TRANSITIONS, ModelState, VersionState
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.repositories import Located, ModelKey
from trident.core.repository.sources import LocalSource, SourceFile


def test_every_state_has_a_row_and_other_moves_are_bugs() -> None:
    assert set(TRANSITIONS) == set(ModelState)
    state = VersionState("m", 1, "server start")
    with pytest.raises(RuntimeError, match="model m:1 cannot go from LOADING to UNLOADING"):
        state.move(ModelState.UNLOADING)


PLAN_CONFIG = 'backend: "onnxruntime" max_batch_size: 8 '
ALL_OF_PLAN = PLAN_CONFIG + "version_policy { all {} }"
THREE = PLAN_CONFIG + "instance_group [ { count: 3 } ]"
FILES = ("config.pbtxt", "labels.txt", "1/model.onnx", "2/model.onnx")


def content(config: str = PLAN_CONFIG, *changed: str, without: str = "") -> Content:
    """A model with two versions; the files `changed` are new, or newer than those of the loaded model."""
    tags = {**dict.fromkeys(FILES, "a"), **dict.fromkeys(changed, "b")}
    files = tuple(SourceFile(path, 1, tag) for path, tag in sorted(tags.items()) if path != without)
    return Content(files, parse_model_config(config, "config.pbtxt"))


NOTHING = Plan(load=(), keep=(1, 2), drop=(), reconfigure=False)
EVERYTHING = Plan(load=(1, 2), keep=(), drop=(), reconfigure=False)
IN_PLACE = Plan(load=(), keep=(1, 2), drop=(), reconfigure=True)


@pytest.mark.parametrize(
    ("new", "plan"),
    [
        pytest.param(content(), NOTHING, id="nothing is newer"),
        pytest.param(content(PLAN_CONFIG, "config.pbtxt"), NOTHING, id="the same configuration, written anew"),
        pytest.param(content(PLAN_CONFIG + " # faster", "config.pbtxt"), NOTHING, id="a comment"),
        pytest.param(content(THREE, "config.pbtxt"), IN_PLACE, id="the instance group"),
        pytest.param(content(ALL_OF_PLAN, "config.pbtxt"), IN_PLACE, id="the version policy, with the same choice"),
        pytest.param(content('backend: "onnxruntime" max_batch_size: 4'), EVERYTHING, id="another field"),
        pytest.param(
            content('backend: "onnxruntime" instance_group [ { count: 3 } ]'), EVERYTHING, id="another field as well"
        ),
        pytest.param(content(THREE, "labels.txt"), EVERYTHING, id="instances and a file"),
        pytest.param(content(PLAN_CONFIG, "labels.txt"), EVERYTHING, id="a shared file"),
        pytest.param(content(without="labels.txt"), EVERYTHING, id="a shared file that is gone"),
        pytest.param(content(PLAN_CONFIG, "golden/one.json"), EVERYTHING, id="a golden request"),
        pytest.param(content(PLAN_CONFIG, "warmup/input"), EVERYTHING, id="a warmup file"),
        pytest.param(content(PLAN_CONFIG, "configs/other.pbtxt"), NOTHING, id="a named configuration that is not used"),
        pytest.param(content(PLAN_CONFIG, "old/model.onnx"), EVERYTHING, id="a folder that is no version"),
        pytest.param(content(PLAN_CONFIG, "1/model.onnx"), Plan((1,), (2,), (), False), id="a version's file"),
        pytest.param(content(PLAN_CONFIG, "2/weights/a.bin"), Plan((2,), (1,), (), False), id="a version's new file"),
        pytest.param(content(THREE, "1/model.onnx"), Plan((1,), (2,), (), True), id="a version and instances"),
    ],
)
def test_changed_files_and_configurations_reload(new: Content, plan: Plan) -> None:
    assert plan_reload(content(), new, [1, 2], {1, 2}) == plan
    assert plan.changes_nothing == (plan == NOTHING)


def test_versions_that_are_new_failed_or_gone_are_planned() -> None:
    new = content(PLAN_CONFIG, "3/model.onnx")
    assert plan_reload(content(), new, [1, 2, 3], {1, 2}) == Plan((3,), (1, 2), (), False)
    assert plan_reload(content(), new, [3], {1, 2}) == Plan((3,), (), (1, 2), False)
    assert plan_reload(content(), content(without="1/model.onnx"), [2], {1, 2}) == Plan((), (2,), (1,), False)
    plan = plan_reload(content(ALL_OF_PLAN), content(PLAN_CONFIG, "config.pbtxt"), [2], {1, 2})
    assert plan == Plan((), (2,), (1,), True)
    assert not plan.changes_nothing
    assert plan_reload(content(), content(), [1, 2], {2}) == Plan((1,), (2,), (), False)


def test_everything_is_loaded_after_an_unload_or_by_force() -> None:
    assert plan_reload(None, content(), [1, 2], ()) == EVERYTHING
    assert plan_reload(None, content(THREE), [1, 2], (), force=True) == EVERYTHING
    assert plan_reload(content(), content(), [1, 2], {1, 2}, force=True) == EVERYTHING
    assert plan_reload(content(), content(THREE), [1, 2], {1, 2}, force=True) == IN_PLACE
    assert plan_reload(content(), content(ALL_OF_PLAN), [1, 2], {1, 2}, force=True) == IN_PLACE
    other = content('backend: "onnxruntime" max_batch_size: 4')
    assert plan_reload(content(), other, [1, 2], {1, 2}, force=True) == EVERYTHING


ALL = CONFIG + "version_policy { all {} }"
POLL_FAILURE = "failed to load 'm', failed to poll from model repository"


class Repository:
    """A repository with a model `m`, and that model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = FakeBackend()
        loader = ModelLoader(EngineOptions(repositories=()), registry_of(self.backend))
        self.retirement = Retirement()
        self.published: list[list[int]] = []
        self.model = Model(ModelKey("m"), loader, self.retirement, self._publish, self._find, lambda name, steps: [])

    def _publish(self) -> None:
        self.published.append(sorted(self.model.serving))

    def _find(self, name: str, version: int) -> ModelVersion:
        return self.model.serving[version]

    def write(self, *weights: int | str, config: str = CONFIG) -> None:
        write(self.path, "m", *weights, config=config)

    def put(self, path: str, content: str) -> None:
        put(self.path / "m" / path, content)

    def load(self, override: str = "") -> None:
        source = LocalSource(self.path)
        located = Located(ModelKey("m"), source, tuple(source.files("m") or ()))
        config = MessageToJson(parse_model_config(override, "override")) if override else None
        self.model.load(located, "a test", config)

    def failure(self, override: str = "") -> ServerError:
        with pytest.raises(ServerError) as caught:
            self.load(override)
        return caught.value

    def settled(self) -> dict[int, str]:
        """The states that the index shows, with their reasons, when nothing is leaving any more."""
        assert self.retirement.wait(LIMIT_S)
        versions = self.model.versions.items()
        return {n: f"{v.state.current.value} {v.state.reason or v.reload_failure}".strip() for n, v in versions}


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    repository = Repository(tmp_path)
    yield repository
    repository.model.leave("the end of the test")
    assert repository.retirement.wait(LIMIT_S)
    until(lambda: threads() == [])
    assert all(model.is_closed for model in repository.backend.models)


def test_the_old_version_serves_until_the_new_one_does(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    repository.put("2/model.fake", "2")
    with ThreadPoolExecutor(1) as pool, repository.backend.holding("m"):
        pool.submit(repository.load)
        until(lambda: repository.backend.loads == ["m:1=1", "m:2=2"])
        assert repository.model.is_busy
        assert repository.model.serving[1].is_ready
        assert repository.model.versions[2].state.current is ModelState.LOADING
    assert list(repository.model.serving) == [2]


def test_only_the_version_that_changed_is_loaded(repository: Repository) -> None:
    repository.write(1, 2, config=ALL)
    repository.load()
    kept = repository.model.serving[1]
    repository.put("2/model.fake", "20")
    repository.load()
    assert repository.backend.loads[2:] == ["m:2=20"]
    assert repository.model.serving[1] is kept
    assert repository.settled() == {1: "READY", 2: "READY"}


def test_a_failed_reload_gives_the_reason_and_the_next_success_clears_it(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    old = repository.model.serving[1]
    repository.put("1/model.fake", BROKEN)
    error = repository.failure()
    assert isinstance(error, InvalidRequest)
    assert error.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: the weights are broken;\n"
    )
    assert repository.model.serving == {1: old}
    assert repository.settled() == {1: "READY Internal: the weights are broken"}
    assert repository.model.has_failed
    assert repository.model.is_ready
    # It is loaded again, although the files are those that failed.
    assert repository.failure().message == error.message
    repository.put("1/model.fake", "2")
    repository.load()
    assert repository.settled() == {1: "READY"}
    assert not repository.model.has_failed


def test_a_new_version_that_fails_stands_beside_the_one_that_serves(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    repository.put("2/model.fake", BROKEN)
    assert "version 2 is at UNAVAILABLE state" in repository.failure().message
    assert repository.settled() == {1: "READY", 2: "UNAVAILABLE Internal: the weights are broken"}
    assert not repository.model.is_ready
    (repository.path / "m" / "2" / "model.fake").unlink()
    (repository.path / "m" / "2").rmdir()
    # The files are those that serve, so nothing is loaded, and the failure is forgotten.
    repository.load()
    assert repository.settled() == {1: "READY"}
    assert repository.model.is_ready
    assert repository.backend.loads == ["m:1=1", "m:2=broken"]


def test_a_reload_of_several_versions_is_all_or_nothing(repository: Repository) -> None:
    repository.write(1, 2, config=ALL)
    repository.load()
    old = dict(repository.model.serving)
    repository.put("1/model.fake", "10")
    repository.put("2/model.fake", BROKEN)
    assert "version 2 is at UNAVAILABLE state" in repository.failure().message
    assert repository.model.serving == old
    assert repository.settled() == {1: "READY", 2: "READY Internal: the weights are broken"}
    # The discarded version is freed.
    assert [model.is_closed for model in repository.backend.models] == [False, False, True]
    repository.put("2/model.fake", "20")
    repository.load()
    assert sorted(repository.backend.loads[-2:]) == ["m:1=10", "m:2=20"]


@pytest.mark.parametrize("config", ["max_batch_sise: 8", CONFIG + 'name: "other"', CONFIG + "max_batch_size: -1"])
def test_a_wrong_configuration_leaves_the_old_version_serving(repository: Repository, config: str) -> None:
    repository.write(1)
    repository.load()
    repository.put("config.pbtxt", config)
    error = repository.failure()
    assert isinstance(error, ModelLoadFailed)
    assert error.message == POLL_FAILURE
    assert error.hint
    assert error.hint.startswith(repository.model.problem)
    assert repository.model.serving[1].is_ready
    repository.put("config.pbtxt", CONFIG)
    repository.load()
    assert repository.model.problem == ""
    assert repository.backend.loads == ["m:1=1"]


def test_files_that_return_clear_the_reason_without_a_load(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    config = repository.path / "m" / "config.pbtxt"
    config.rename(repository.path / "kept")
    repository.put("config.pbtxt", "no configuration")
    repository.failure()
    assert repository.model.problem
    (repository.path / "kept").replace(config)
    repository.load()
    assert repository.model.problem == ""
    assert repository.backend.loads == ["m:1=1"]


def test_a_model_without_versions_cannot_be_loaded(repository: Repository) -> None:
    repository.put("config.pbtxt", CONFIG)
    error = repository.failure()
    assert isinstance(error, ModelLoadFailed)
    assert error.message == "failed to load 'm', no version is available"
    reason = "Invalid argument: at least one version must be available under the version policy of model 'm'"
    assert repository.model.problem == reason


def test_instances_are_added_in_place(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    version, (model,) = repository.model.serving[1], repository.backend.models
    repository.put("config.pbtxt", MORE_INSTANCES)
    repository.load()
    assert repository.model.serving[1] is version
    assert repository.backend.loads == ["m:1=1"]
    assert len(version.placements) == 3
    assert version.config.instance_group[0].count == 3
    repository.put("config.pbtxt", CONFIG)
    repository.load()
    assert repository.model.serving[1] is version
    assert len(version.placements) == 1
    assert [instance.is_closed for instance in model.instances] == [False, True, True]


def test_a_failed_instance_leaves_the_version_unchanged(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    version, (model,) = repository.model.serving[1], repository.backend.models
    before = version.config
    model.limit = 2
    repository.put("config.pbtxt", MORE_INSTANCES)
    assert repository.failure().message == POLL_FAILURE
    assert repository.model.problem == "Internal: no memory"
    assert version.config == before
    assert len(version.placements) == 1
    assert [instance.is_closed for instance in model.instances] == [False, True]
    model.limit = 100
    repository.load()
    assert repository.model.problem == ""
    assert len(version.placements) == 3


@pytest.mark.parametrize("weight", ["2", BROKEN])
def test_a_load_that_ends_after_the_exit_is_discarded(repository: Repository, weight: str) -> None:
    """Even if it was to drop or change the serving versions, which have left by then."""
    repository.write(1, 2, config=ALL)
    repository.load()
    repository.put("3/model.fake", weight)
    repository.put("2/model.fake", "20")
    repository.put("config.pbtxt", MORE_INSTANCES + "version_policy { specific { versions: [ 2, 3 ] } }")
    with ThreadPoolExecutor(1) as pool:
        with repository.backend.holding("m"):
            loading = pool.submit(repository.load)
            until(lambda: len(repository.backend.loads) == 4)
            repository.model.leave("server exit")
            assert repository.settled()[1] == "UNAVAILABLE unloaded"
        assert type(loading.exception(LIMIT_S)) is (InvalidRequest if weight == BROKEN else NoneType)
    assert repository.retirement.wait(LIMIT_S)
    assert all(model.is_closed for model in repository.backend.models)


@contextmanager
def serving(repository: Path) -> Iterator[tuple[Bench, ModelVersion, Retirement]]:
    """A model whose version the test unloads, so that the server does not at its exit."""
    write(repository, "m", 1)
    with living(repository) as bench:
        version = bench.version("m")
        yield bench, version, Retirement()
        until(lambda: version.state.current is ModelState.UNAVAILABLE)
        bench.lifecycle.models.all()[0].serving = {}


def test_queued_requests_still_run_until_the_wait_ends(tmp_path: Path) -> None:
    with serving(tmp_path) as (bench, version, retirement):
        with bench.running("m") as running:
            queued = bench.submit("m")
            retirement.begin(version, "a test")
            with pytest.raises(
                ServerStopping, match="scheduler for model has stopped accepting new inference requests"
            ):
                bench.ask("m")
            assert queued.empty()
            # The time is over: queued requests are refused, running ones continue.
            assert not retirement.wait(0)
            with pytest.raises(ServerStopping):
                weight_of(queued)
            assert running.empty()
        assert weight_of(running) == 1


def test_the_log_names_the_versions_with_requests_in_flight(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    retirement = Retirement(report_s=0.001)
    found = f"Timeout {LIMIT_S:.0f}: Found 1 model versions that have in-flight inferences"
    with serving(tmp_path) as (bench, version, _), ThreadPoolExecutor(1) as pool:
        with bench.running("m"):
            retirement.begin(version, "a test")
            waiting = pool.submit(retirement.wait, LIMIT_S)
            until(lambda: caplog.messages.count(found) >= 2)
            assert "Model 'm' (version 1) has 1 in-flight inferences" in caplog.messages
        assert waiting.result(LIMIT_S)
    assert Retirement().wait(3)
    assert caplog.messages[-1] == "Timeout 3: Found 0 model versions that have in-flight inferences"
