"""The table "What reloads" of docs/spec/repository.md section 1.6."""

from __future__ import annotations

import pytest

from trident.core.config.parse import parse_model_config
from trident.core.lifecycle.model import Content, Plan, plan_reload
from trident.core.repository.sources import SourceFile

CONFIG = 'backend: "onnxruntime" max_batch_size: 8 '
ALL = CONFIG + "version_policy { all {} }"
THREE = CONFIG + "instance_group [ { count: 3 } ]"
FILES = ("config.pbtxt", "labels.txt", "1/model.onnx", "2/model.onnx")


def content(config: str = CONFIG, *changed: str, without: str = "") -> Content:
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
        pytest.param(content(CONFIG, "config.pbtxt"), NOTHING, id="the same configuration, written anew"),
        pytest.param(content(CONFIG + " # faster", "config.pbtxt"), NOTHING, id="a comment"),
        pytest.param(content(THREE, "config.pbtxt"), IN_PLACE, id="the instance group"),
        pytest.param(content(ALL, "config.pbtxt"), IN_PLACE, id="the version policy, with the same choice"),
        pytest.param(content('backend: "onnxruntime" max_batch_size: 4'), EVERYTHING, id="another field"),
        pytest.param(
            content('backend: "onnxruntime" instance_group [ { count: 3 } ]'), EVERYTHING, id="another field as well"
        ),
        pytest.param(content(THREE, "labels.txt"), EVERYTHING, id="instances and a file"),
        pytest.param(content(CONFIG, "labels.txt"), EVERYTHING, id="a shared file"),
        pytest.param(content(without="labels.txt"), EVERYTHING, id="a shared file that is gone"),
        pytest.param(content(CONFIG, "golden/one.json"), EVERYTHING, id="a golden request"),
        pytest.param(content(CONFIG, "warmup/input"), EVERYTHING, id="a warmup file"),
        pytest.param(content(CONFIG, "configs/other.pbtxt"), NOTHING, id="a named configuration that is not used"),
        pytest.param(content(CONFIG, "old/model.onnx"), EVERYTHING, id="a folder that is no version"),
        pytest.param(content(CONFIG, "1/model.onnx"), Plan((1,), (2,), (), False), id="a version's file"),
        pytest.param(content(CONFIG, "2/weights/a.bin"), Plan((2,), (1,), (), False), id="a version's new file"),
        pytest.param(content(THREE, "1/model.onnx"), Plan((1,), (2,), (), True), id="a version and instances"),
    ],
)
def test_changed_files_and_configurations_reload(new: Content, plan: Plan) -> None:
    assert plan_reload(content(), new, [1, 2], {1, 2}) == plan
    assert plan.changes_nothing == (plan == NOTHING)


def test_only_a_new_version_is_loaded() -> None:
    new = content(CONFIG, "3/model.onnx")
    assert plan_reload(content(), new, [1, 2, 3], {1, 2}) == Plan((3,), (1, 2), (), False)
    assert plan_reload(content(), new, [3], {1, 2}) == Plan((3,), (), (1, 2), False)


def test_a_version_that_is_missing_or_not_selected_is_dropped() -> None:
    assert plan_reload(content(), content(without="1/model.onnx"), [2], {1, 2}) == Plan((), (2,), (1,), False)
    plan = plan_reload(content(ALL), content(CONFIG, "config.pbtxt"), [2], {1, 2})
    assert plan == Plan((), (2,), (1,), True)
    assert not plan.changes_nothing


def test_a_version_that_failed_to_load_is_loaded_again() -> None:
    assert plan_reload(content(), content(), [1, 2], {2}) == Plan((1,), (2,), (), False)


def test_all_versions_of_an_unloaded_model_are_loaded() -> None:
    assert plan_reload(None, content(), [1, 2], ()) == EVERYTHING
    assert plan_reload(None, content(THREE), [1, 2], (), force=True) == EVERYTHING


def test_force_reloads_unless_the_change_can_be_made_in_place() -> None:
    assert plan_reload(content(), content(), [1, 2], {1, 2}, force=True) == EVERYTHING
    assert plan_reload(content(), content(THREE), [1, 2], {1, 2}, force=True) == IN_PLACE
    assert plan_reload(content(), content(ALL), [1, 2], {1, 2}, force=True) == IN_PLACE
    other = content('backend: "onnxruntime" max_batch_size: 4')
    assert plan_reload(content(), other, [1, 2], {1, 2}, force=True) == EVERYTHING


def test_a_folder_with_leading_zeros_is_no_version() -> None:
    new = content(CONFIG, "01/model.onnx")
    assert plan_reload(content(), new, [1, 2], {1, 2}) == EVERYTHING
