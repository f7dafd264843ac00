"""The versions of one model after a load, a reload and a failed load."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType

import pytest
from google.protobuf.json_format import MessageToJson

from tests.unit.core.lifecycle.lifecycle_bench import (
    BROKEN,
    CONFIG,
    LIMIT_S,
    MORE_INSTANCES,
    FakeBackend,
    put,
    registry_of,
    threads,
    write,
)
from tests.waiting import until
from trident.core.config.parse import parse_model_config
from trident.core.errors import InvalidRequest, ModelLoadFailed, ServerError
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.model import Model, Retirement
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.state import ModelState
from trident.core.lifecycle.version import ModelVersion
from trident.core.repository.repositories import Located, ModelKey
from trident.core.repository.sources import LocalSource

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


def test_the_latest_policy_moves_on_and_the_old_version_stays_in_the_index(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    repository.put("2/model.fake", "2")
    repository.load()
    assert repository.settled() == {1: "UNAVAILABLE unloaded", 2: "READY"}
    assert repository.backend.loads == ["m:1=1", "m:2=2"]
    # At no moment is there no version.
    assert repository.published == [[1], [2]]
    assert repository.model.is_ready


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


def test_a_failed_version_that_is_no_longer_selected_leaves_the_index(repository: Repository) -> None:
    repository.write(1, BROKEN)
    repository.failure()
    repository.put("3/model.fake", "3")
    repository.load()
    assert repository.settled() == {3: "READY"}
    # The file that serves returns, together with a new one.
    repository.put("config.pbtxt", CONFIG + "version_policy { specific { versions: [ 3, 4 ] } }")
    file = repository.path / "m" / "3" / "model.fake"
    file.rename(repository.path / "kept")
    repository.put("3/model.fake", BROKEN)
    repository.failure()
    assert repository.settled() == {3: "READY Internal: the weights are broken"}
    (repository.path / "kept").replace(file)
    repository.put("4/model.fake", "4")
    repository.load()
    assert repository.settled() == {3: "READY", 4: "READY"}


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


def test_all_failed_versions_are_named(repository: Repository) -> None:
    repository.write(BROKEN, BROKEN, config=ALL)
    assert repository.failure().message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: the weights are broken;\n"
        "version 2 is at UNAVAILABLE state: Internal: the weights are broken;\n"
    )
    assert not repository.model.is_ready


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


def test_an_override_that_changes_only_instances_is_applied_in_place(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    repository.load(override=MORE_INSTANCES)
    assert len(repository.model.serving[1].placements) == 3
    assert repository.backend.loads == ["m:1=1"]
    repository.load(override=MORE_INSTANCES)
    assert repository.backend.loads == ["m:1=1"] * 2


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
