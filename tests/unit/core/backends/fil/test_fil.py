"""Tree models as XGBoost, LightGBM and Treelite save them, served and compared with what those predict themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import treelite
import xgboost

from tests.unit.backend_serving import config_of, serving_version
from trident.core.backends import registry as framework
from trident.core.backends.fil.backend import FilBackend
from trident.core.backends.fil.treelite import TreePrediction
from trident.core.config.autocomplete import auto_complete
from trident.core.config.schema import ModelConfig
from trident.core.errors import (
    ConfigInvalid,
    ModelLoadFailed,
    NotInstalled,
    RepositoryUnavailable,
    ServerError,
    Unsupported,
)
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


def tree_config(model_type: str, dims: int, more: str = "", features: int = FEATURES) -> ModelConfig:
    parameters = {"model_type": model_type, "is_classifier": "false"}
    given = dict(pair.split("=") for pair in more.split())
    text = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {**parameters, **given}.items()
        if value
    )
    return config_of(
        "max_batch_size: 512\n"
        f'input {{ name: "input__0" data_type: TYPE_FP32 dims: [{features}] }}\n'
        f'output {{ name: "output__0" data_type: TYPE_FP32 dims: [{dims}] }}\n' + text,
        backend="fil",
    )


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    return folder


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


def test_two_probabilities_of_a_binary_classifier(version: Path) -> None:
    trained = written(version, "binary")
    answer = served(version, tree_config("xgboost_json", 2, "is_classifier=true predict_proba=true"))
    np.testing.assert_allclose(answer[:, 1], trained.predict(TABLE), rtol=1e-5)
    np.testing.assert_allclose(answer.sum(axis=1), 1, rtol=1e-6)


def test_the_older_parameter_output_class(version: Path) -> None:
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
    assert not field or raised.value.field == f"parameters[{field}]"


def test_shap_values_are_refused(version: Path) -> None:
    config = tree_config("lightgbm", 1)
    config.output.add().CopyFrom(config.output[0])
    config.output[1].name = "treeshap_output"
    with pytest.raises(Unsupported) as raised:
        FilBackend().check(config)
    assert raised.value.message.startswith("output 'treeshap_output' of model 'model' cannot be computed")


def test_without_treelite_the_extra_is_named(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(version, "classes")
    monkeypatch.setattr(framework, "find_spec", lambda name: None)
    for ask in (lambda config: FilBackend().inspect(version, config), FilBackend().check):
        with pytest.raises(NotInstalled) as raised:
            ask(tree_config("xgboost_json", 3))
        assert raised.value.hint == "install its framework: pip install 'trident-inference[trees]'"


def test_inputs_of_another_name_are_refused() -> None:
    config = tree_config("xgboost_json", 1)
    config.input[0].name = "rows"
    with pytest.raises(ConfigInvalid) as refused:
        FilBackend().check(config)
    assert refused.value.field == "input"


# --- predictions by the C library


MANY_ROWS = np.random.default_rng(0).normal(size=(600, FEATURES)).astype(np.float32)


def of_xgboost(rounds: int) -> Any:
    label = np.digitize(MANY_ROWS[:, 0], [-0.5, 0.5])
    settings = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3}
    return treelite.frontend.from_xgboost(xgboost.train(settings, xgboost.DMatrix(MANY_ROWS, label=label), rounds))


def of_lightgbm(rounds: int) -> Any:
    """Its thresholds are FP64, so that rows are converted."""
    data = lightgbm.Dataset(MANY_ROWS, label=MANY_ROWS[:, 0].copy())
    return treelite.frontend.from_lightgbm(lightgbm.train({"verbose": -1}, data, rounds))


@pytest.mark.parametrize("make", [of_xgboost, of_lightgbm])
@pytest.mark.parametrize("threads", [1, 2])
def test_scores_are_those_of_the_library(make: Any, threads: int) -> None:
    trees = make(20)
    prediction = TreePrediction(trees, threads)
    # The last is enough work for a second thread.
    for count in (1, 3, 600):
        np.testing.assert_array_equal(
            prediction.scores(MANY_ROWS[:count]), treelite.gtil.predict(trees, MANY_ROWS[:count])[:, 0, :]
        )


def test_missing_values_go_the_way_that_the_trees_learned() -> None:
    trees = of_xgboost(5)
    rows = np.full((2, FEATURES), np.nan, np.float32)
    np.testing.assert_array_equal(TreePrediction(trees, 1).scores(rows), treelite.gtil.predict(trees, rows)[:, 0, :])
