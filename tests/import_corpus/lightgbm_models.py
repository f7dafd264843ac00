"""LightGBM's models, asked as its booster or its classes for scikit-learn predict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np

from tests.import_corpus import Case, Data, Writer, both, data, dumped, rows_at

_REGRESSIONS = ("regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie")
_RANKINGS = ("lambdarank", "rank_xendcg")


def thresholds_of(booster: Any) -> list[tuple[int, float]]:
    def walk(node: Any) -> Iterator[tuple[int, float]]:
        if "split_feature" in node:
            if node["decision_type"] == "<=":
                yield node["split_feature"], node["threshold"]
            yield from walk(node["left_child"])
            yield from walk(node["right_child"])

    return [each for tree in booster.dump_model()["tree_info"] for each in walk(tree["tree_structure"])]


def label_of(objective: str, given: Data) -> Any:
    if objective in ("binary", "cross_entropy", "cross_entropy_lambda"):
        return given.two
    if objective.startswith(("multiclass", *_RANKINGS)):
        return given.three
    return given.label("positive") if objective in ("poisson", "gamma", "tweedie") else given.number


def scores(booster: Any, rows: Any) -> Any:
    answer = booster.predict(rows)
    is_binary = "objective=binary" in booster.model_to_string(num_iteration=1)
    return both(answer) if is_binary else answer


def trained(
    objective: str = "regression",
    *,
    rounds: int = 8,
    saved: int | None = None,
    missing: float = 0.0,
    sparse: bool = False,
    categories: int = 0,
    weights: bool = False,
    **settings: Any,
) -> Writer:
    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random, missing, sparse)
        x = given.x.copy()
        label = label_of(objective, given)
        if categories:
            x[:, 0] = random.integers(0, categories, len(x))
            x[:, 3] = random.integers(0, categories, len(x))
            number = np.sin(x[:, 0] * 3) * 4 + x[:, 3] % 3
            label = {"multiclass": np.digitize(number, [-1, 2]), "binary": number > 1}.get(objective, number)
        options = {"objective": objective, "verbose": -1, "min_data_in_leaf": 3, "num_threads": 1, **settings}
        if objective.startswith("multiclass"):
            options["num_class"] = 3
        group = [10] * 10 if objective in _RANKINGS else None
        if categories:
            options = {"min_data_per_group": 2, "cat_smooth": 1, **options}
        columns: Any = [0, 3] if categories else "auto"
        table = lgb.Dataset(x, label, group=group, categorical_feature=columns, params=options)
        booster = lgb.train(options, table, rounds)
        booster.save_model(folder / "model.txt", num_iteration=saved)
        # What is read again is asked: it has the rounds that were saved.
        read = lgb.Booster(model_file=str(folder / "model.txt"))
        values = [*range(categories + 3), -1, 0.5, 1.5, -0.5, -0.9, 1e9, 3e38, np.inf, -np.inf, np.nan]
        columns_of = {0: values, 3: values} if categories else None
        rows = rows_at(random, x, thresholds_of(booster), categories=columns_of)
        return Case(folder / "model.txt", {"": rows}, lambda asked: [scores(read, asked["input__0"])])

    return write


def wrapped(kind: str, *, label: str = "number", early: bool = False, as_text: bool = False, **settings: Any) -> Writer:
    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random)
        target = given.label(label)
        model = getattr(lgb, kind)(verbose=-1, min_child_samples=3, n_estimators=40 if early else 6, **settings)
        extra: dict[str, Any] = {}
        if early:
            extra = {"eval_set": [(given.x[:40], target[40:80])], "callbacks": [lgb.early_stopping(2, verbose=False)]}
        if kind == "LGBMRanker":
            extra["group"] = [10] * 10
        model.fit(given.x, target, **extra)
        path = folder / ("model.txt" if as_text else "model.pkl")
        model.booster_.save_model(path) if as_text else dumped(model, path)
        rows = rows_at(random, given.x, thresholds_of(model.booster_))
        ask = model.predict_proba if hasattr(model, "predict_proba") else model.predict
        return Case(path, {"": rows}, lambda asked: [ask(asked["input__0"])])

    return write


def own_objective(folder: Path, random: np.random.Generator) -> Case:
    given = data(random)

    def gradients(scores: Any, table: Any) -> tuple[Any, Any]:
        return scores - table.get_label(), np.ones(len(scores))

    options = {"objective": gradients, "verbose": -1, "min_data_in_leaf": 3}
    booster = lgb.train(options, lgb.Dataset(given.x, given.number), 6)
    booster.save_model(folder / "model.txt")
    rows = rows_at(random, given.x, thresholds_of(booster))
    return Case(folder / "model.txt", {"": rows}, lambda asked: [scores(booster, asked["input__0"])])


def continued(folder: Path, random: np.random.Generator) -> Case:
    """Zeros are missing in some of its trees only."""
    given = data(random, sparse=True)
    options: dict[str, Any] = {"objective": "regression", "verbose": -1, "min_data_in_leaf": 3}
    missing = {**options, "zero_as_missing": True}
    first = lgb.train(missing, lgb.Dataset(given.x, given.number, params=missing), 4)
    booster = lgb.train(options, lgb.Dataset(given.x, given.number), 4, init_model=first)
    booster.save_model(folder / "model.txt")
    rows = rows_at(random, given.x, thresholds_of(booster))
    return Case(folder / "model.txt", {"": rows}, lambda asked: [scores(booster, asked["input__0"])])


_FOREST = {"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1, "feature_fraction": 0.8}

CASES: dict[str, Writer] = {
    **{objective: trained(objective) for objective in _REGRESSIONS},
    "regression sqrt": trained("regression", reg_sqrt=True),
    "binary": trained("binary"),
    "binary sigmoid 2.5": trained("binary", sigmoid=2.5),
    "binary unbalanced": trained("binary", is_unbalance=True, missing=0.2),
    "cross_entropy": trained("cross_entropy"),
    "cross_entropy_lambda": trained("cross_entropy_lambda"),
    "multiclass": trained("multiclass"),
    "multiclass with missing": trained("multiclass", missing=0.3),
    "multiclassova": trained("multiclassova"),
    "multiclassova sigmoid 3": trained("multiclassova", sigmoid=3.0),
    "lambdarank": trained("lambdarank"),
    "rank_xendcg": trained("rank_xendcg"),
    "an objective of one's own": own_objective,
    "missing": trained(missing=0.3),
    "use_missing off": trained(missing=0.3, use_missing=False),
    "zero_as_missing": trained(sparse=True, zero_as_missing=True),
    "zero_as_missing with missing": trained(sparse=True, missing=0.2, zero_as_missing=True),
    "zero_as_missing binary": trained("binary", sparse=True, zero_as_missing=True),
    "zero_as_missing of three": trained("multiclass", sparse=True, zero_as_missing=True),
    "zero_as_missing off": trained(sparse=True, zero_as_missing=True, use_missing=False),
    "missing in some trees": continued,
    "categories": trained(categories=6),
    "categories one by one": trained(categories=4, max_cat_to_onehot=100),
    "many categories": trained(categories=60),
    "categories of three classes": trained("multiclass", categories=8),
    "categories with zero missing": trained("binary", categories=6, zero_as_missing=True),
    "linear trees": trained(linear_tree=True),
    "dart": trained(boosting="dart", drop_rate=0.5),
    "dart of two": trained("binary", boosting="dart", xgboost_dart_mode=True, drop_rate=0.5),
    "goss": trained(data_sample_strategy="goss"),
    "forest": trained("regression", **_FOREST),
    "forest of two": trained("binary", **_FOREST),
    "forest of three": trained("multiclass", **_FOREST),
    "saved in part": trained(saved=3),
    "saved in part of three": trained("multiclass", saved=2),
    "saved forest in part": trained("regression", saved=3, **_FOREST),
    "one leaf": trained(min_gain_to_split=1e9),
    "path smooth": trained(path_smooth=3.0, extra_trees=True),
    "deep": trained(rounds=30, num_leaves=60, min_data_in_leaf=1, missing=0.1),
    "monotone": trained(monotone_constraints=[1, -1, 0, 0]),
    "few bins": trained(max_bin=4),
    "LGBMRegressor": wrapped("LGBMRegressor"),
    "LGBMRegressor stopped": wrapped("LGBMRegressor", early=True),
    "LGBMRegressor stopped text": wrapped("LGBMRegressor", early=True, as_text=True),
    "LGBMClassifier": wrapped("LGBMClassifier", label="two"),
    "LGBMClassifier of names": wrapped("LGBMClassifier", label="names"),
    "LGBMClassifier stopped": wrapped("LGBMClassifier", label="three", early=True),
    "LGBMRanker": wrapped("LGBMRanker", label="three"),
    "LGBMClassifier ova": wrapped("LGBMClassifier", label="three", objective="multiclassova"),
}
