"""Tree models as XGBoost, LightGBM and Treelite save them, served and compared with what those predict themselves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import treelite
import xgboost

from tests import needed
from tests.unit.backend_serving import config_of, parameter, serving_version
from trident.core.backends.fil import FilBackend, RowRules, TreeSettings, run_of
from trident.core.config.autocomplete import auto_complete
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed, RepositoryUnavailable, ServerError, Unsupported
from trident.core.inference.tensors import Array

FEATURES = 5
ROWS = 200
TABLE = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
TARGETS: dict[str, Array] = {
    "regression": TABLE[:, 0] * 2,
    "binary": (TABLE[:, 0] > 0).astype(np.int32),
    "classes": np.digitize(TABLE[:, 0], [-0.5, 0.5]),
}


@dataclass(frozen=True)
class Trained:
    """A model file of `model_type`, and the framework's own prediction: (rows,) or (rows, classes)."""

    model_type: str
    write: Callable[[Path], object]
    predict: Callable[[Array], Array]


def booster(kind: str) -> Any:
    objective = {"regression": "reg:squarederror", "binary": "binary:logistic", "classes": "multi:softprob"}[kind]
    settings = {"objective": objective, "max_depth": 3, **({"num_class": 3} if kind == "classes" else {})}
    return xgboost.train(settings, xgboost.DMatrix(TABLE, label=TARGETS[kind]), 3)


def xgboost_file(kind: str, model_type: str, name: str) -> Trained:
    trained = booster(kind)
    return Trained(
        model_type,
        # It warns of an unusual ending and saves the same as for .ubj.
        lambda version: (version / name).write_bytes(trained.save_raw("json" if name.endswith(".json") else "ubj")),
        lambda rows: trained.predict(xgboost.DMatrix(rows)),
    )


def lightgbm_file(kind: str) -> Trained:
    objective = {"regression": "regression", "binary": "binary", "classes": "multiclass"}[kind]
    settings = {"objective": objective, "verbose": -1, **({"num_class": 3} if kind == "classes" else {})}
    lightgbm = needed.lightgbm()
    trained = lightgbm.train(settings, lightgbm.Dataset(TABLE, label=TARGETS[kind]), 3)
    return Trained("lightgbm", lambda version: trained.save_model(version / "model.txt"), trained.predict)


def checkpoint_file(kind: str) -> Trained:
    trained = booster(kind)
    return Trained(
        "treelite_checkpoint",
        lambda version: treelite.frontend.from_xgboost(trained).serialize(version / "checkpoint.tl"),
        lambda rows: trained.predict(xgboost.DMatrix(rows)),
    )


SAVED: dict[str, Callable[[str], Trained]] = {
    "json": lambda kind: xgboost_file(kind, "xgboost_json", "xgboost.json"),
    "ubj": lambda kind: xgboost_file(kind, "xgboost_ubj", "xgboost.ubj"),
    # What XGBoost saves today under the name that was that of its binary format.
    "model": lambda kind: xgboost_file(kind, "xgboost", "xgboost.model"),
    "lightgbm": lightgbm_file,
    "checkpoint": checkpoint_file,
}


def tree_config(
    model_type: str, dims: int, more: str = "", features: int = FEATURES, output: str = "output__0"
) -> ModelConfig:
    parameters = {"model_type": model_type, "is_classifier": "false"}
    given = dict(pair.split("=") for pair in more.split())
    text = "".join(parameter(*each) for each in {**parameters, **given}.items() if each[1])
    return config_of(
        "max_batch_size: 512\n"
        f'input {{ name: "input__0" data_type: TYPE_FP32 dims: [{features}] }}\n'
        f'output {{ name: "{output}" data_type: TYPE_FP32 dims: [{dims}] }}\n' + text,
        backend="fil",
    )


def written(version: Path, kind: str) -> Trained:
    """XGBoost's JSON of a kind of trees, in the directory of a version."""
    trained = xgboost_file(kind, "xgboost_json", "xgboost.json")
    trained.write(version)
    return trained


def served(version: Path, config: ModelConfig, rows: Array = TABLE) -> Array:
    with serving_version(FilBackend(), version, config, threads=2) as model:
        return model.infer({"input__0": rows})["output__0"]


@pytest.mark.slow
@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize(("kind", "dims"), [("regression", 1), ("binary", 1), ("classes", 3)])
def test_answers_are_those_of_the_framework(version: Path, saved: str, kind: str, dims: int) -> None:
    trained = SAVED[saved](kind)
    trained.write(version)
    more = "" if kind == "regression" else "is_classifier=true predict_proba=true"
    answer = served(version, tree_config(trained.model_type, dims, more))
    assert answer.dtype == np.float32
    assert answer.shape == ((ROWS,) if dims == 1 else (ROWS, dims))
    np.testing.assert_allclose(answer, trained.predict(TABLE), rtol=1e-5)


@pytest.mark.parametrize(("threshold", "expected"), [("", 0.5), ("threshold=0.7", 0.7)])
def test_binary_classes_follow_the_threshold(version: Path, threshold: str, expected: float) -> None:
    trained = written(version, "binary")
    answer = served(version, tree_config("xgboost_json", 1, f"is_classifier=true {threshold}"))
    np.testing.assert_array_equal(answer, trained.predict(TABLE) > expected)
    assert set(answer) == {0, 1}


def test_binary_classifier_gives_two_probabilities(version: Path) -> None:
    trained = written(version, "binary")
    answer = served(version, tree_config("xgboost_json", 2, "is_classifier=true predict_proba=true"))
    np.testing.assert_allclose(answer[:, 1], trained.predict(TABLE), rtol=1e-5)
    np.testing.assert_allclose(answer.sum(axis=1), 1, rtol=1e-6)


def test_older_parameter_output_class_is_read(version: Path) -> None:
    trained = written(version, "classes")
    answer = served(version, tree_config("xgboost_json", 1, "is_classifier= output_class=true"))
    np.testing.assert_array_equal(answer, trained.predict(TABLE).argmax(axis=1))


def test_inputs_and_outputs_are_completed_from_the_trees(version: Path) -> None:
    written(version, "classes")
    config = tree_config("xgboost_json", 3, "is_classifier=true predict_proba=true")
    completed = ModelConfig()
    completed.CopyFrom(config)
    del completed.input[:], completed.output[:]
    auto_complete(completed, FilBackend().inspect(version, completed), 4)
    assert (completed.input[0], completed.output[0]) == (config.input[0], config.output[0])


@pytest.mark.parametrize(
    ("config", "error", "text", "field"),
    [
        (tree_config("pickle", 1), Unsupported, "pickle not recognized as a valid serialization", "model_type"),
        (tree_config("lightgbm", 1, "is_classifier="), ConfigInvalid, "Required parameter is_c", "is_classifier"),
        (tree_config("lightgbm", 1, "is_classifier=yes"), ServerError, "Expected 'true' or 'false'", "is_classifier"),
        (tree_config("lightgbm", 1, "threshold=high"), ServerError, "Bad input for parameter threshold", "threshold"),
        (tree_config("lightgbm", 1), RepositoryUnavailable, "unable to find", ""),
        (tree_config("xgboost_json", 1, features=FEATURES - 1), ConfigInvalid, "the trees have 5 features", ""),
        (tree_config("xgboost_json", 1), ConfigInvalid, "the trees give 3 values a row", ""),
        (tree_config("xgboost_ubj", 3), ModelLoadFailed, "failed to load model 'model': ", ""),
        (tree_config("lightgbm", 1, output="treeshap_output"), ServerError, "treeshap_output", "output"),
        (tree_config("lightgbm", 1, output="rows"), ServerError, "must have the one output 'output__0'", "output"),
    ],
)
def test_files_that_contradict_the_configuration_fail_the_load(
    version: Path, config: ModelConfig, error: type[ServerError], text: str, field: str
) -> None:
    written(version, "classes")
    (version / "xgboost.ubj").write_bytes(b"no trees")
    with pytest.raises(error) as raised, serving_version(FilBackend(), version, config):
        pass
    assert text in raised.value.message
    assert field in (raised.value.field or "")


# --- predictions by the C library


def test_scores_of_many_rows_are_those_of_the_library() -> None:
    """On two threads, with rows that are converted to FP64, and with missing values."""
    rows = np.random.default_rng(0).normal(size=(600, FEATURES)).astype(np.float32)
    lightgbm = needed.lightgbm()
    trained = lightgbm.train({"verbose": -1}, lightgbm.Dataset(rows, label=rows[:, 0].copy()), 20)
    trees = treelite.frontend.from_lightgbm(trained)
    rows[1] = np.nan
    settings = TreeSettings("lightgbm", False, False, 0.5, 0, False)
    run = run_of(trees, settings, RowRules(math.nan), 1, 2)
    for count in (1, 3, 600):
        expected = treelite.gtil.predict(trees, rows[:count])[:, 0, 0]
        np.testing.assert_array_equal(run([], {"input__0": rows[:count]}, None)[0], expected.astype(np.float32))


@pytest.mark.parametrize("settings", [{}, {"zero_as_missing": True}, {"use_missing": False}, {"boosting": "dart"}])
@pytest.mark.parametrize("has_categories", [False, True])
@pytest.mark.parametrize("has_nan", [False, True])
def test_missing_values_and_categories_are_those_of_lightgbm(
    tmp_path: Path, settings: dict[str, Any], has_categories: bool, has_nan: bool
) -> None:
    lightgbm = needed.lightgbm()
    random = np.random.default_rng(1)
    table, asked = (random.normal(size=(600, FEATURES)) for _ in range(2))
    for rows in (table, asked):
        rows[random.random(rows.shape) < 0.15] = 0
    asked[:100] *= 1e-36
    # The numbers that LightGBM takes for zero end here, and so do thresholds.
    asked[100:200] = random.choice([1, -1, 1.1, -1.1], (100, FEATURES)) * np.float32(1e-35)
    if has_categories:
        table[:, 2] = random.integers(0, 8, len(table))
        asked[:, 2] = random.choice([0, 1, 3, 6, 9, 100, -1, -0.5, 0.5, 1.7, np.nan, np.inf, -np.inf], len(asked))
    target = table[:, 0] * 2 + np.isin(table[:, 2], [1, 3, 6])
    if has_nan:
        table[random.random(table.shape) < 0.1] = np.nan
    asked[random.random(asked.shape) < 0.1] = np.nan
    rows = asked.astype(np.float32)
    data = lightgbm.Dataset(table, target, categorical_feature=[2] if has_categories else "auto", params=settings)
    more = {"verbose": -1, "min_data_per_group": 5, "cat_smooth": 1, **settings}
    lightgbm.train(more, data, 10).save_model(tmp_path / "model.txt")
    found = served(tmp_path, tree_config("lightgbm", 1), rows[:512])
    expected = lightgbm.Booster(model_file=str(tmp_path / "model.txt")).predict(rows.astype(float))
    np.testing.assert_allclose(found, expected[:512], rtol=1e-5, atol=1e-6)


def test_features_that_trees_of_lightgbm_read_differently_are_refused(tmp_path: Path) -> None:
    lightgbm = needed.lightgbm()
    missing = {"verbose": -1, "zero_as_missing": True}
    first = lightgbm.train(missing, lightgbm.Dataset(TABLE, TARGETS["regression"], params=missing), 2)
    trained = lightgbm.train({"verbose": -1}, lightgbm.Dataset(TABLE, TARGETS["regression"]), 2, init_model=first)
    trained.save_model(tmp_path / "model.txt")
    with pytest.raises(Unsupported, match=r"feature 0 counts zeros as missing.*in some trees of LightGBM only"):
        served(tmp_path, tree_config("lightgbm", 1), TABLE)


def test_a_number_that_is_missing_counts_as_nan(tmp_path: Path) -> None:
    table = np.where(np.random.default_rng(2).random(TABLE.shape) < 0.3, 9, TABLE).astype(np.float32)
    data = xgboost.DMatrix(table, label=table[:, 0], missing=9)
    trained = xgboost.train({"max_depth": 4}, data, 5)
    trained.save_model(tmp_path / "xgboost.json")
    found = served(tmp_path, tree_config("xgboost_json", 1, "missing=9"), table)
    np.testing.assert_allclose(found, trained.predict(data), rtol=1e-5)


def test_linear_leaves_of_lightgbm_are_refused(tmp_path: Path) -> None:
    lightgbm = needed.lightgbm()
    data = lightgbm.Dataset(TABLE, TARGETS["regression"], params={"linear_tree": True})
    lightgbm.train({"verbose": -1, "linear_tree": True}, data, 2).save_model(tmp_path / "model.txt")
    with pytest.raises(Unsupported, match="linear leaves"):
        served(tmp_path, tree_config("lightgbm", 1))


@pytest.mark.parametrize(
    ("field", "changed", "message"),
    [
        ("left_child", "0", "the nodes of tree 0 are not a tree"),
        ("left_child", "99", "the nodes of tree 0 are not a tree"),
        ("num_leaves", "2000000000", "the nodes of tree 0 are not a tree"),
        ("split_feature", "-5", "tree 0 has features beyond"),
    ],
)
def test_lightgbm_trees_with_missing_nodes_are_refused(tmp_path: Path, field: str, changed: str, message: str) -> None:
    lightgbm_file("regression").write(tmp_path)
    text = (tmp_path / "model.txt").read_text()
    (tmp_path / "model.txt").write_text(re.sub(rf"^{field}=\S+", f"{field}={changed}", text, flags=re.MULTILINE))
    with pytest.raises(ModelLoadFailed, match=message):
        served(tmp_path, tree_config("lightgbm", 1))


@pytest.mark.parametrize("feature", [-7, 100_000_000])
def test_features_beyond_a_row_are_refused(tmp_path: Path, feature: int) -> None:
    document = json.loads(booster("regression").save_raw("json"))
    document["learner"]["gradient_booster"]["model"]["trees"][1]["split_indices"][0] = feature
    (tmp_path / "xgboost.json").write_text(json.dumps(document))
    with pytest.raises(ModelLoadFailed, match="tree 1 has features beyond the 5 of a row"):
        served(tmp_path, tree_config("xgboost_json", 1))


@pytest.mark.parametrize("name", ["xgboost.json", "xgboost.ubj"])
def test_an_empty_file_fails_the_load(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelLoadFailed):
        served(tmp_path, tree_config(name.replace(".", "_"), 1))


@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        ("json", b'"num_class":"2000000000"', "it has 2000000000 classes or targets, and may have 1048576"),
        ("json", b'"num_class":"\\n +2000000000"', "it has 2000000000 classes"),
        ("json", b'"num_cl\\u0061ss":"2000000000"', r"it has \\u0061, an escape that XGBoost does not write"),
        ("ubj", b"num_classSL" + (10).to_bytes(8, "big") + b"2000000000", "it has 2000000000 classes"),
        ("ubj", b"num_classNNSU\x0d +02000000000", "it has 2000000000 classes"),
    ],
)
def test_huge_number_of_classes_allocates_no_memory(tmp_path: Path, kind: str, count: bytes, message: str) -> None:
    content = bytes(booster("classes").save_raw(kind))
    for given in (b'"num_class":"3"', b"num_classSL" + (1).to_bytes(8, "big") + b"3"):
        content = content.replace(given, count)
    (tmp_path / f"xgboost.{kind}").write_bytes(content)
    with pytest.raises(ModelLoadFailed, match=message):
        served(tmp_path, tree_config(f"xgboost_{kind}", 3))
