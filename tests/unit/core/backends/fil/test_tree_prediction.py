"""Predictions by Treelite's C library, compared with those of its Python function."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest
import treelite
import xgboost

from trident.core.backends.fil.treelite import TreePrediction
from trident.core.inference.tensors import Array

FEATURES = 5
TABLE = np.random.default_rng(0).normal(size=(600, FEATURES)).astype(np.float32)


def of_xgboost(rounds: int) -> Any:
    label = np.digitize(TABLE[:, 0], [-0.5, 0.5])
    settings = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3}
    return treelite.frontend.from_xgboost(xgboost.train(settings, xgboost.DMatrix(TABLE, label=label), rounds))


def of_lightgbm(rounds: int) -> Any:
    """Its thresholds are FP64, so that rows are converted."""
    data = lightgbm.Dataset(TABLE, label=TABLE[:, 0].copy())
    return treelite.frontend.from_lightgbm(lightgbm.train({"verbose": -1}, data, rounds))


@pytest.mark.parametrize("make", [of_xgboost, of_lightgbm])
@pytest.mark.parametrize("threads", [1, 2])
def test_scores_are_those_of_the_library(make: Any, threads: int) -> None:
    trees = make(20)
    prediction = TreePrediction(trees, threads)
    # The last is enough work for a second thread.
    for count in (1, 3, 600):
        np.testing.assert_array_equal(
            prediction.scores(TABLE[:count]), treelite.gtil.predict(trees, TABLE[:count])[:, 0, :]
        )


def test_rows_may_lie_in_any_memory() -> None:
    trees = of_xgboost(2)
    prediction = TreePrediction(trees, 1)
    expected = treelite.gtil.predict(trees, TABLE[:4])[:, 0, :]
    read_only: Array = np.frombuffer(TABLE[:4].tobytes(), np.float32).reshape(4, FEATURES)
    columns = np.asfortranarray(TABLE[:4])
    for rows in (read_only, columns, np.repeat(TABLE[:4], 2, axis=0)[::2]):
        np.testing.assert_array_equal(prediction.scores(rows), expected)


def test_missing_values_go_the_way_that_the_trees_learned() -> None:
    trees = of_xgboost(5)
    rows = np.full((2, FEATURES), np.nan, np.float32)
    np.testing.assert_array_equal(TreePrediction(trees, 1).scores(rows), treelite.gtil.predict(trees, rows)[:, 0, :])
