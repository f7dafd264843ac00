"""One model: states, plans of reloads, loads, swaps and unloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import NoneType

import numpy as np
import pytest

from tests.unit.core.lifecycle.lifecycle_bench import (
    BROKEN,
    CONFIG,
    LIMIT_S,
    MORE_INSTANCES,
    FakeBackend,
    put,
    registry_of,
    write,
)
from tests.waiting import until
from trident.core.backends.registry import BackendRegistry
from trident.core.config.schema import config_json, parse_model_config
from trident.core.errors import InvalidRequest, ModelLoadFailed, ModelLoading, ModelNotFound, ModelNotReady, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.model import Content, Model, ReloadPlan, Unloads, plan_reload
from trident.core.lifecycle.models import Models, find_steps
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.state import UNLOADED, ModelState
from trident.core.lifecycle.version import EngineParts, ModelVersion
from trident.core.repository.sources import LocalSource, Located, ModelKey, SourceFile

PLAN_CONFIG = 'backend: "onnxruntime" max_batch_size: 8 '
ALL_OF_PLAN = PLAN_CONFIG + "version_policy { all {} }"
THREE = PLAN_CONFIG + "instance_group [ { count: 3 } ]"
FILES = ("config.pbtxt", "labels.txt", "1/model.onnx", "2/model.onnx")


def content(config: str = PLAN_CONFIG, *changed: str, without: str = "") -> Content:
    """A model with two versions; the files `changed` are new, or newer than those of the loaded model."""
    tags = {**dict.fromkeys(FILES, "a"), **dict.fromkeys(changed, "b")}
    files = tuple(SourceFile(path, 1, tag) for path, tag in sorted(tags.items()) if path != without)
    return Content(files, parse_model_config(config, "config.pbtxt"))


NOTHING = ReloadPlan(load=(), keep=(1, 2), drop=(), reconfigure=False)
EVERYTHING = ReloadPlan(load=(1, 2), keep=(), drop=(), reconfigure=False)
IN_PLACE = ReloadPlan(load=(), keep=(1, 2), drop=(), reconfigure=True)


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
        pytest.param(content(PLAN_CONFIG, "old/model.onnx"), EVERYTHING, id="a folder that is not a version"),
        pytest.param(content(PLAN_CONFIG, "1/model.onnx"), ReloadPlan((1,), (2,), (), False), id="a version's file"),
        pytest.param(
            content(PLAN_CONFIG, "2/weights/a.bin"), ReloadPlan((2,), (1,), (), False), id="a version's new file"
        ),
        pytest.param(content(THREE, "1/model.onnx"), ReloadPlan((1,), (2,), (), True), id="a version and instances"),
    ],
)
def test_changed_files_and_configurations_reload(new: Content, plan: ReloadPlan) -> None:
    assert plan_reload(content(), new, [1, 2], {1, 2}) == plan


ALL = CONFIG + "version_policy { all {} }"
POLL_FAILURE = "failed to load 'm', failed to poll from model repository"


class Repository:
    """A repository with a model `m`, and that model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = FakeBackend()
        loader = ModelLoader(EngineOptions(repositories=()), registry_of(self.backend), EngineParts())
        self.unloads = Unloads()
        self.published: list[list[int]] = []
        self.model = Model(ModelKey("m"), loader, self.unloads, self._publish, self._find, lambda name, steps: [])

    def _publish(self) -> None:
        self.published.append(sorted(self.model.serving))

    def _find(self, name: str, version: int) -> ModelVersion:
        return self.model.serving[version]

    def write(self, *weights: int | str, config: str = CONFIG) -> None:
        write(self.path, "m", *weights, config=config)

    def put(self, path: str, content: str) -> None:
        put(self.path / "m" / path, content)

    def load(self, override: str | None = None) -> None:
        source = LocalSource(self.path)
        located = Located(ModelKey("m"), source, tuple(source.files("m") or ()))
        self.model.load(located, "a test", override)

    def failure(self) -> ServerError:
        with pytest.raises(ServerError) as caught:
            self.load()
        return caught.value

    def settled(self) -> dict[int, str]:
        """The states that the index shows, with their reasons, when nothing is leaving any more."""
        assert self.unloads.wait(LIMIT_S)
        versions = self.model.versions.items()
        return {n: f"{v.state.current.value} {v.state.reason or v.reload_failure}".strip() for n, v in versions}


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    repository = Repository(tmp_path)
    yield repository
    repository.model.leave("the end of the test")
    assert repository.unloads.wait(LIMIT_S)
    assert all(model.is_closed for model in repository.backend.models)


def test_old_version_serves_until_the_new_one_is_ready(repository: Repository) -> None:
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


def test_failure_reason_of_a_reload_is_cleared_by_the_next_success(repository: Repository) -> None:
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
    repository.model.unload("a test")
    assert not repository.model.has_failed
    repository.put("1/model.fake", "2")
    repository.load()
    assert repository.settled() == {1: "READY"}
    assert not repository.model.has_failed


def test_failed_new_version_is_listed_beside_the_serving_one(repository: Repository) -> None:
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


def test_file_that_may_be_meant_as_configuration_is_logged(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    repository.write(1)
    repository.put("config.yaml", "max_batch_size: 8")
    repository.load()
    assert "config.yaml" not in caplog.text
    (repository.path / "m" / "config.pbtxt").unlink()
    repository.failure()
    assert "m/config.yaml is not read as its configuration: write it as m/config.pbtxt" in caplog.text


@pytest.mark.parametrize("config", ["max_batch_sise: 8", CONFIG + 'name: "other"', CONFIG + "max_batch_size: -1"])
def test_old_version_serves_after_an_invalid_configuration(repository: Repository, config: str) -> None:
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


def test_remaining_instance_may_wait_for_its_process(repository: Repository) -> None:
    repository.write(1, config=MORE_INSTANCES)
    repository.load()
    version, (model,) = repository.model.serving[1], repository.backend.models
    model.on_change(model.instances[0], False)
    repository.put("config.pbtxt", CONFIG)
    repository.load()
    assert [instance.is_closed for instance in model.instances] == [False, True, True]
    model.on_change(model.instances[0], True)
    responses: SimpleQueue[InferenceResponse] = SimpleQueue()
    version.submit(PendingRequest(InferenceRequest("m", [tensor_of((1,))]), responses.put))
    assert responses.get(timeout=LIMIT_S).error is None


def test_load_does_not_wait_for_sequences_of_a_removed_instance(repository: Repository) -> None:
    """As NVIDIA's qa/L0_model_update has it: the instance without a sequence is gone at once, the others later."""
    sequences = CONFIG + "max_batch_size: 4 sequence_batching { oldest {} max_sequence_idle_microseconds: 3600000000 } "
    repository.write(1, config=sequences + "instance_group { count: 3 kind: KIND_CPU }")
    repository.load()
    version, (model,) = repository.model.serving[1], repository.backend.models
    send_of_sequence(version, 1, "start")
    send_of_sequence(version, 2, "start")
    before = list(model.instances)
    repository.put("config.pbtxt", sequences + "instance_group { kind: KIND_CPU rate_limiter { priority: 2 } }")
    repository.load()
    assert len(version.placements) == 1
    until(lambda: sum(instance.is_closed for instance in before) == 1)
    assert version.sequences == (2, 4 + 2, 0)
    send_of_sequence(version, 3, "start")
    send_of_sequence(version, 1, "end")
    until(lambda: sum(instance.is_closed for instance in before) == 2)
    send_of_sequence(version, 3)
    send_of_sequence(version, 2)
    assert sum(instance.is_closed for instance in model.instances) == 2
    repository.model.unload("a test")
    assert repository.settled() == {1: "UNAVAILABLE unloaded"}  # the model is closed after all its instances


def test_load_does_not_wait_for_streams_of_a_removed_instance(repository: Repository) -> None:
    decoupled = CONFIG + "model_transaction_policy { decoupled: true } "
    repository.write(1, config=decoupled)
    repository.load()
    version, (model,) = repository.model.serving[1], repository.backend.models
    model.gate.clear()
    responses: SimpleQueue[InferenceResponse] = SimpleQueue()
    version.submit(PendingRequest(InferenceRequest("m", [tensor_of((1,))]), responses.put))
    assert model.begun.acquire(timeout=LIMIT_S)
    repository.put("config.pbtxt", decoupled + "instance_group { kind: KIND_CPU rate_limiter { priority: 2 } }")
    repository.load()
    assert not model.instances[0].is_closed
    model.gate.set()
    assert responses.get(timeout=LIMIT_S).error is None
    until(lambda: model.instances[0].is_closed)


def tensor_of(shape: tuple[int, ...]) -> InputTensor:
    return InputTensor("INPUT0", "INT32", shape, np.zeros(shape, np.int32))


def send_of_sequence(version: ModelVersion, sequence: int, flag: str = "") -> None:
    request = InferenceRequest("m", [tensor_of((1, 1))])
    request.correlation_id, request.sequence_start, request.sequence_end = sequence, flag == "start", flag == "end"
    responses: SimpleQueue[InferenceResponse] = SimpleQueue()
    version.submit(PendingRequest(request, responses.put))
    assert responses.get(timeout=LIMIT_S).error is None


def test_instances_are_added_by_the_published_configuration(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    version = repository.model.serving[1]
    shown = json.loads(json.dumps(config_json(version.config)))
    shown["instance_group"][0]["count"] += 1
    repository.load(json.dumps(shown))
    assert repository.model.serving[1] is version
    assert repository.backend.loads == ["m:1=1"]
    assert len(version.placements) == 2
    repository.load(json.dumps(shown))
    assert repository.model.serving[1] is version
    repository.load(json.dumps({**shown, "max_batch_size": 3}))
    assert repository.backend.loads == ["m:1=1", "m:1=1"]


def test_failed_instance_does_not_change_the_version(repository: Repository) -> None:
    repository.write(1)
    repository.load()
    version, (model,) = repository.model.serving[1], repository.backend.models
    before = version.config
    model.limit = 2
    repository.put("config.pbtxt", MORE_INSTANCES)
    assert repository.failure().message == (
        "load failed for model 'm': version 1 is at READY state: Internal: no memory;\n"
    )
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
    """Even if it would drop or change serving versions, which are unloaded by then."""
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
    assert repository.unloads.wait(LIMIT_S)
    assert all(model.is_closed for model in repository.backend.models)


# --- models


def empty(*, namespacing: bool = False) -> Models:
    loader = ModelLoader(EngineOptions(repositories=()), BackendRegistry({}), EngineParts())
    known = Models(
        lambda key, models: Model(
            key, loader, Unloads(), models.publish, models.find, partial(find_steps, models, key.namespace)
        ),
        namespacing=namespacing,
    )
    known.are_listed = True
    return known


def enter(known: Models, key: ModelKey, number: int, state: ModelState) -> None:
    model = known.add(key)
    version = ModelVersion(key.name, number, "a test", known.find)
    if state is ModelState.LOADING:
        model.is_awaited = True
    else:
        version.state.move(state, "Internal: broken" if state is ModelState.UNAVAILABLE else "")
    model.versions = {**model.versions, number: version}
    if state is ModelState.READY:
        model.serving = {**model.serving, number: version}


def models(*versions: tuple[str, int, ModelState]) -> Models:
    known = empty()
    for name, number, state in versions:
        enter(known, ModelKey(name), number, state)
    known.publish()
    return known


@pytest.mark.parametrize(
    ("name", "version", "kind", "message"),
    [
        ("nope", -1, ModelNotFound, "Request for unknown model: 'nope' is not found"),
        ("m", 9, ModelNotFound, "Request for unknown model: 'm' version 9 is not found"),
        ("m", 7, ModelNotReady, "Request for unknown model: 'm' version 7 is not at ready state"),
        ("m", 8, ModelLoading, "Request for unknown model: 'm' version 8 is not at ready state"),
        ("gone", -1, ModelNotFound, "Request for unknown model: 'gone' has no available versions"),
        ("failed", 1, ModelNotReady, "Request for unknown model: 'failed' version 1 is not at ready state"),
        ("failed", 2, ModelNotFound, "Request for unknown model: 'failed' version 2 is not found"),
        ("loading", -1, ModelLoading, "model 'loading' is still being loaded"),
        ("loading", 1, ModelLoading, "Request for unknown model: 'loading' version 1 is not at ready state"),
        ("loading", 9, ModelNotFound, "Request for unknown model: 'loading' version 9 is not found"),
        ("awaited", -1, ModelLoading, "model 'awaited' is still being loaded"),
        ("awaited", 9, ModelLoading, "model 'awaited' is still being loaded"),
        ("empty", -1, ModelNotFound, "Request for unknown model: 'empty' is not found"),
        # Triton has the reasons of failed loads only in its log.
        ("failed", -1, ModelNotReady, "model 'failed' failed to load: version 1 is UNAVAILABLE: Internal: broken"),
        ("invalid", -1, ModelNotReady, "model 'invalid' failed to load: Invalid argument: nothing in it"),
        ("invalid", 1, ModelNotReady, "model 'invalid' failed to load: Invalid argument: nothing in it"),
    ],
)
def test_lookup_errors_have_the_texts_of_triton(name: str, version: int, kind: type[ServerError], message: str) -> None:
    known = models(
        ("m", 1, ModelState.READY),
        ("m", 7, ModelState.UNAVAILABLE),
        ("m", 8, ModelState.LOADING),
        ("loading", 1, ModelState.LOADING),
        ("failed", 1, ModelState.UNAVAILABLE),
        ("gone", 1, ModelState.READY),
    )
    gone = known.add(ModelKey("gone"))
    gone.serving = {}
    gone.versions[1].state.move(ModelState.UNLOADING)
    gone.versions[1].state.move(ModelState.UNAVAILABLE, UNLOADED)
    known.publish()
    known.add(ModelKey("awaited")).is_awaited = True
    known.add(ModelKey("empty"))
    known.add(ModelKey("invalid")).problem = "Invalid argument: nothing in it"
    with pytest.raises(kind) as caught:
        known.find(name, version)
    assert caught.value.message == message


def test_failed_model_has_a_hint() -> None:
    known = models()
    failed = known.add(ModelKey("failed"))
    version = ModelVersion("failed", 1, "a test", known.find)
    version.fail(ModelLoadFailed("broken", hint="mend it"))
    failed.versions = {1: version}
    known.publish()
    with pytest.raises(ModelNotReady) as caught:
        known.find("failed", -1)
    assert caught.value.hint == "mend it; `trident validate REPO` lists all problems of a repository"


def test_unknown_models_are_unavailable_until_the_repositories_are_read() -> None:
    known = models(("m", 1, ModelState.READY))
    known.are_listed = False
    assert known.find("m", -1).version == 1
    with pytest.raises(ModelLoading, match=r"^Server not ready$") as caught:
        known.find("nope", -1)
    assert caught.value.retry_after_s == 1


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("iriss", "did you mean 'iris'?"),
        ("IRIS", "did you mean 'iris'?"),
        ("resnet", "the repository index lists the models"),
    ],
)
def test_unknown_model_hint_suggests_a_similar_name(asked: str, hint: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        models(("iris", 1, ModelState.READY), ("digits", 1, ModelState.READY)).find(asked, -1)
    assert caught.value.hint == hint


def test_hint_has_the_reason_of_an_unready_version() -> None:
    with pytest.raises(ModelNotReady) as caught:
        models(("m", 7, ModelState.UNAVAILABLE)).find("m", 7)
    assert caught.value.hint == "version 7 is UNAVAILABLE: Internal: broken"


def test_a_model_is_ready_if_each_version_is_ready_or_unloaded() -> None:
    (model,) = models(("m", 1, ModelState.READY), ("m", 2, ModelState.READY)).all()
    assert model.is_ready
    model.versions[1].state.move(ModelState.UNLOADING)
    assert model.is_ready
    model.versions[1].state.move(ModelState.UNAVAILABLE, UNLOADED)
    assert model.is_ready
    (failed,) = models(("m", 1, ModelState.UNAVAILABLE)).all()
    assert not failed.is_ready


def test_a_model_without_versions_is_unready_if_it_was_required_at_start() -> None:
    model = empty().add(ModelKey("m"))
    assert model.is_ready
    model.required = True
    assert not model.is_ready
