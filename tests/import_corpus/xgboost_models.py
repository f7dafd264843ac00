"""XGBoost's models, asked as its classes for scikit-learn predict, or its booster where they have no such objective."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb

from tests.import_corpus import Case, Data, Writer, both, data, dumped, rows_at

_REGRESSIONS = [f"reg:{name}error" for name in ("squared", "squaredlog", "pseudohuber", "absolute")]
_REGRESSIONS += ["reg:logistic", "reg:gamma", "reg:tweedie", "count:poisson", "survival:cox"]
_BINARY = ("binary:logistic", "binary:logitraw", "binary:hinge")


_HIST = {"tree_method": "hist", "max_depth": 4}


def thresholds_of(booster: Any) -> list[tuple[int, float]]:
    if '"name":"gblinear"' in booster.save_config():
        return []
    names = booster.feature_names or [f"f{number}" for number in range(booster.num_features())]

    def walk(node: Any) -> Iterator[tuple[int, float]]:
        if isinstance(node.get("split_condition"), (int, float)):
            yield names.index(node["split"]), node["split_condition"]
        for child in node.get("children", ()):
            yield from walk(child)

    return [each for tree in booster.get_dump(dump_format="json") for each in walk(json.loads(tree))]


def label_of(objective: str, given: Data) -> Any:
    if objective.startswith("binary") or objective in ("reg:logistic", "rank:map"):
        return given.two
    if objective.startswith(("multi", "rank")):
        return given.three
    if objective == "count:poisson":
        return np.round(np.abs(given.number))
    positive = ("reg:gamma", "reg:tweedie", "survival:cox", "survival:aft", "reg:squaredlogerror")
    return given.label("positive") if objective in positive else given.number


def scores(booster: Any, rows: Any, missing: float = np.nan) -> Any:
    """The booster's own answer, of a binary objective for both classes."""
    best = booster.attr("best_iteration")
    limit = (0, int(best) + 1) if best is not None else (0, 0)
    answer = booster.predict(xgb.DMatrix(rows, missing=missing, **_types(booster)), iteration_range=limit)
    return both(answer) if '"binary:logistic"' in booster.save_config() else answer


def _types(booster: Any) -> dict[str, Any]:
    kinds = booster.feature_types
    return {"feature_types": kinds, "enable_categorical": True, "feature_names": booster.feature_names} if kinds else {}


def trained(
    objective: str = "reg:squarederror", *, suffix: str = "json", rounds: int = 8, missing: float = 0.0, **settings: Any
) -> Writer:
    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random, missing)
        settings.setdefault("max_depth", 4)
        options: dict[str, Any] = {"objective": objective, **settings}
        if objective.startswith("multi"):
            options["num_class"] = 3
        matrix = xgb.DMatrix(given.x, label=label_of(objective, given))
        if objective.startswith("rank"):
            matrix.set_group([10] * 10)
        if objective == "survival:aft":
            matrix = xgb.DMatrix(given.x)
            matrix.set_float_info("label_lower_bound", label_of(objective, given))
            matrix.set_float_info("label_upper_bound", label_of(objective, given) + 1)
        booster = xgb.train(options, matrix, rounds)
        booster.save_model(folder / f"model.{suffix}")
        rows = rows_at(random, given.x, thresholds_of(booster))
        return Case(folder / f"model.{suffix}", {"": rows}, lambda asked: [scores(booster, asked["input__0"])])

    return write


def wrapped(
    kind: str, *, as_pickle: bool = False, label: str = "number", early: bool = False, **settings: Any
) -> Writer:
    """A class for scikit-learn, saved by itself or pickled, with its own `predict_proba` or `predict`."""

    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random)
        settings.setdefault("n_estimators", 30 if early else 6)
        model = getattr(xgb, kind)(max_depth=4, **settings, **({"early_stopping_rounds": 2} if early else {}))
        target = given.label(label)
        extra: dict[str, Any] = (
            {"eval_set": [(given.x[:40], target[:40] * 0 + target[40:80])], "verbose": False} if early else {}
        )
        if kind == "XGBRanker":
            extra["group"] = [10] * 10
        model.fit(given.x, target, **extra)
        path = folder / ("model.pkl" if as_pickle else "model.json")
        dumped(model, path) if as_pickle else model.save_model(path)
        special = (0.0, -0.0, np.nan, -999.0, 1e-36, 1e10) if "missing" in settings else (0.0, np.nan, np.inf, -np.inf)
        rows = rows_at(random, given.x, thresholds_of(model.get_booster()), special=special)
        ask = model.predict_proba if hasattr(model, "predict_proba") else model.predict
        if "objective" in settings:
            # Of these scores `predict_proba` makes columns that add up to 1, and no probabilities.
            ask = partial(scores, model.get_booster())
        return Case(path, {"": rows}, lambda asked: [ask(asked["input__0"])])

    return write


def categories(objective: str, *, onehot: int = 4, count: int = 6, frame: bool = False, suffix: str = "json") -> Writer:
    """Two columns of categories: with known, unknown, negative and broken numbers."""

    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random)
        x = given.x.copy()
        x[:, 0] = random.integers(0, count, len(x))
        x[:, 2] = random.integers(0, 2 * count, len(x))
        number = np.sin(x[:, 0] * 3) * 4 + (x[:, 2] % 3) + x[:, 1]
        target = {"multi": np.digitize(number, [-1, 2]), "binary": (number > 1).astype(int)}
        label = target.get(objective.partition(":")[0], number)
        options: dict[str, Any] = {"objective": objective, "max_cat_to_onehot": onehot, **_HIST}
        if objective.startswith("multi"):
            options["num_class"] = 3
        if frame:
            import pandas as pd

            table = pd.DataFrame(x, columns=list("abcd"))
            for name in "ac":
                table[name] = table[name].astype(int).astype("category")
            matrix = xgb.DMatrix(table, label=label, enable_categorical=True)
        else:
            matrix = xgb.DMatrix(x, label=label, feature_types=["c", "q", "c", "q"], enable_categorical=True)
        booster = xgb.train(options, matrix, 8)
        booster.save_model(folder / f"model.{suffix}")
        values = [*range(2 * count + 3), -1, 0.5, -0.5, 1e9, np.nan]
        rows = rows_at(random, x, thresholds_of(booster), categories={0: values, 2: values})
        return Case(folder / f"model.{suffix}", {"": rows}, lambda asked: [scores(booster, asked["input__0"])])

    return write


def many_targets(strategy: str, objective: str = "reg:squarederror") -> Writer:
    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random)
        label = np.stack([given.number, -given.number, given.number**2], axis=1)
        if objective.startswith("binary"):
            label = given.label("labels")
        settings = {"objective": objective, "multi_strategy": strategy, **_HIST}
        booster = xgb.train(settings, xgb.DMatrix(given.x, label=label), 6)
        booster.save_model(folder / "model.json")
        rows = rows_at(random, given.x, [(0, 0.0), (1, 0.5)])
        return Case(folder / "model.json", {"": rows}, lambda asked: [booster.predict(xgb.DMatrix(asked["input__0"]))])

    return write


def best_round(best: int, objective: str = "reg:squarederror", **settings: Any) -> Writer:
    """The attribute that early stopping writes, with a callback's `save_best` off."""

    def write(folder: Path, random: np.random.Generator) -> Case:
        case = trained(objective, rounds=12, suffix="ubj", **settings)(folder, random)
        booster = xgb.Booster(model_file=str(case.source))
        booster.set_attr(best_iteration=str(best), best_score="0.5")
        booster.save_model(case.source)
        return Case(case.source, case.rows, lambda asked: [scores(booster, asked["input__0"])])

    return write


CASES: dict[str, Writer] = {
    **{f"{objective} json": trained(objective) for objective in (*_REGRESSIONS, *_BINARY)},
    **{f"{each} ubj": trained(each, suffix="ubj", missing=0.2) for each in (_REGRESSIONS[0], *_BINARY)},
    "survival:aft": trained("survival:aft"),
    "reg:quantileerror": trained("reg:quantileerror", quantile_alpha=0.3, tree_method="hist"),
    "reg:quantileerror of three": trained("reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9], tree_method="hist"),
    "multi:softprob": trained("multi:softprob"),
    "multi:softprob with missing": trained("multi:softprob", missing=0.3),
    "multi:softmax": trained("multi:softmax"),
    "rank:pairwise": trained("rank:pairwise"),
    "rank:ndcg": trained("rank:ndcg"),
    "rank:map": trained("rank:map"),
    "base_score": trained(base_score=7.5),
    "base_score logistic": trained("binary:logistic", base_score=0.9),
    "base_score poisson": trained("count:poisson", base_score=3.0),
    "base_score softprob": trained("multi:softprob", base_score=0.3),
    "dart": trained(booster="dart", rate_drop=0.5, one_drop=1),
    "dart logistic": trained("binary:logistic", booster="dart", rate_drop=0.4, skip_drop=0.3, suffix="ubj"),
    "dart softprob": trained("multi:softprob", booster="dart", rate_drop=0.5),
    "gblinear": trained(booster="gblinear"),
    "forest": trained(num_parallel_tree=5, subsample=0.7, colsample_bynode=0.7, learning_rate=1, rounds=1),
    "boosted forest": trained("multi:softprob", num_parallel_tree=3, subsample=0.7, rounds=4),
    "exact": trained(tree_method="exact"),
    "approx": trained(tree_method="approx", missing=0.3),
    "lossguide": trained("binary:logistic", grow_policy="lossguide", max_leaves=9, max_depth=0, tree_method="hist"),
    "monotone": trained(monotone_constraints="(1,-1,0,0)"),
    "one leaf": trained(gamma=1e9),
    "no rounds": trained(rounds=0),
    "deep": trained(max_depth=12, rounds=20, missing=0.1, suffix="ubj"),
    "best round": best_round(3),
    "best round of a forest": best_round(2, num_parallel_tree=3, subsample=0.5),
    "best round of softprob": best_round(4, "multi:softprob"),
    "best round of dart": best_round(5, booster="dart", rate_drop=0.3),
    "best round 0": best_round(0, "binary:logistic"),
    "XGBRegressor": wrapped("XGBRegressor"),
    "XGBRegressor stopped": wrapped("XGBRegressor", early=True),
    "XGBRegressor stopped pickle": wrapped("XGBRegressor", early=True, as_pickle=True),
    "XGBClassifier": wrapped("XGBClassifier", label="two"),
    "XGBClassifier pickle": wrapped("XGBClassifier", label="two", as_pickle=True),
    "XGBClassifier of three pickle": wrapped("XGBClassifier", label="three", as_pickle=True),
    "XGBClassifier stopped": wrapped("XGBClassifier", label="three", early=True),
    "XGBRFRegressor": wrapped("XGBRFRegressor"),
    "XGBRFClassifier pickle": wrapped("XGBRFClassifier", label="three", as_pickle=True),
    "XGBRanker": wrapped("XGBRanker", label="three", as_pickle=True),
    "missing -999 pickle": wrapped("XGBRegressor", as_pickle=True, missing=-999.0),
    "missing 0 pickle": wrapped("XGBRegressor", as_pickle=True, missing=0.0),
    "missing 0 stopped pickle": wrapped("XGBClassifier", label="two", early=True, as_pickle=True, missing=0.0),
    "hinge pickle": wrapped("XGBClassifier", label="two", as_pickle=True, objective="binary:hinge"),
    "softmax pickle": wrapped("XGBClassifier", label="three", as_pickle=True, objective="multi:softmax"),
    "logitraw pickle": wrapped("XGBClassifier", label="two", as_pickle=True, objective="binary:logitraw"),
    "categories": categories("reg:squarederror"),
    "categories one by one": categories("binary:logistic", onehot=100),
    "categories of three classes": categories("multi:softprob", onehot=1, suffix="ubj"),
    "many categories": categories("reg:squarederror", onehot=1, count=70),
    "categories of a table": categories("reg:squarederror", frame=True),
    "targets one by one": many_targets("one_output_per_tree"),
    "targets in one tree": many_targets("multi_output_tree"),
    "labels": many_targets("one_output_per_tree", "binary:logistic"),
}
