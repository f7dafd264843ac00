"""CatBoost's models, asked as its classes predict: probabilities where they have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import catboost as cat
import numpy as np

from tests.import_corpus import Case, Data, Writer, data, dumped, rows_at

_QUIET: dict[str, Any] = {"iterations": 8, "depth": 4, "verbose": False, "allow_writing_files": False}
_QUIET["thread_count"] = 1
_REGRESSIONS = ["RMSE", "MAE", "Quantile:alpha=0.3", "Expectile:alpha=0.4", "LogCosh", "Lq:q=3", "MAPE"]
_REGRESSIONS += ["Huber:delta=1", "RMSEWithUncertainty", "MultiQuantile:alpha=0.1,0.5,0.9", "RMSPE"]
_POSITIVE = ("Poisson", "Tweedie:variance_power=1.5", "LogLinQuantile")
_RANKINGS = ("QueryRMSE", "YetiRank", "PairLogitPairwise", "QuerySoftMax")


def borders(model: Any) -> list[tuple[int, float]]:
    return [(int(feature), border) for feature, found in model.get_borders().items() for border in found]


def case(
    model: Any, given: Data, folder: Path, random: np.random.Generator, ask: Any, kind: str, **special: Any
) -> Case:
    path = folder / f"model.{kind}"
    model.save_model(str(path)) if kind == "cbm" else dumped(model, path)
    rows = rows_at(random, given.x, borders(model), **special)
    return Case(path, {"": rows}, lambda asked: ask(asked["features"]))


def trained(
    kind: str, loss: str = "", *, label: str = "number", file: str = "cbm", missing: float = 0.0, **settings: Any
) -> Writer:
    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random, missing)
        target = given.label(label)
        model = getattr(cat, kind)(**{**_QUIET, **settings}, **({"loss_function": loss} if loss else {}))
        extra = {"group_id": np.repeat(np.arange(10), 10)} if kind == "CatBoostRanker" else {}
        if "early_stopping_rounds" in settings:
            extra = {"eval_set": (given.x[:40], target[40:80])}
        model.fit(given.x, target, **extra)

        asked = [model.predict, model.predict_proba] if kind == "CatBoostClassifier" else [model.predict]
        return case(model, given, folder, random, lambda rows: [each(rows) for each in asked], file)

    return write


def with_categories(folder: Path, random: np.random.Generator) -> Case:
    given = data(random)
    table = [[*row[:3], "abc"[int(abs(row[3])) % 3]] for row in given.x]
    model = cat.CatBoostRegressor(**_QUIET, cat_features=[3]).fit(table, given.number)
    model.save_model(str(folder / "model.cbm"))
    return Case(folder / "model.cbm", columns(table), lambda _: [model.predict(table)])


def columns(table: list[list[Any]]) -> dict[str, Any]:
    """Three numbers and a text a row, as the inputs that are served."""
    numbers = {f"x{place}": np.array([[row[place]] for row in table], np.float32) for place in range(3)}
    return {**numbers, "x3": np.array([[row[3]] for row in table], object)}


def with_texts(folder: Path, random: np.random.Generator) -> Case:
    given = data(random)
    table = [[*row[:3], "good words" if row[0] > 0 else "bad words"] for row in given.x]
    model = cat.CatBoostClassifier(**_QUIET, text_features=[3]).fit(table, given.two)
    model.save_model(str(folder / "model.cbm"))
    return Case(
        folder / "model.cbm", columns(table), lambda _: [model.predict(table)[:, None], model.predict_proba(table)]
    )


def class_of_many(file: str) -> Writer:
    """Saved by the class, and read by the general one."""
    return trained("CatBoostClassifier", "MultiClass", label="three", file=file)


CASES: dict[str, Writer] = {
    **{loss.partition(":")[0]: trained("CatBoostRegressor", loss) for loss in _REGRESSIONS},
    **{loss.partition(":")[0]: trained("CatBoostRegressor", loss, label="positive") for loss in _POSITIVE},
    **{loss: trained("CatBoostRanker", loss, label="three") for loss in _RANKINGS},
    "Logloss": trained("CatBoostClassifier", label="two"),
    "CrossEntropy": trained("CatBoostClassifier", "CrossEntropy", label="two"),
    "Focal": trained("CatBoostClassifier", "Focal:focal_alpha=0.4;focal_gamma=2", label="two"),
    "MultiClass": class_of_many("cbm"),
    "MultiClass pickle": class_of_many("pkl"),
    "MultiClassOneVsAll": trained("CatBoostClassifier", "MultiClassOneVsAll", label="three"),
    "MultiClass of names": trained("CatBoostClassifier", "MultiClass", label="names"),
    "Logloss pickle": trained("CatBoostClassifier", label="two", file="pkl"),
    "Logloss of a threshold": trained("CatBoostClassifier", label="two", class_weights=[1, 5]),
    "MultiLogloss": trained("CatBoostClassifier", "MultiLogloss", label="labels"),
    "MultiCrossEntropy": trained("CatBoostClassifier", "MultiCrossEntropy", label="labels"),
    "MultiRMSE": trained("CatBoostRegressor", "MultiRMSE", label="numbers"),
    "NaN Min": trained("CatBoostRegressor", missing=0.3, nan_mode="Min"),
    "NaN Max": trained("CatBoostRegressor", missing=0.3, nan_mode="Max"),
    "NaN Forbidden": trained("CatBoostRegressor", nan_mode="Forbidden"),
    "NaN Max of three": trained("CatBoostClassifier", "MultiClass", label="three", missing=0.3, nan_mode="Max"),
    "best model": trained("CatBoostRegressor", iterations=60, early_stopping_rounds=2, use_best_model=True),
    "Lossguide": trained("CatBoostRegressor", grow_policy="Lossguide", max_leaves=9),
    "Depthwise": trained("CatBoostClassifier", label="two", grow_policy="Depthwise"),
    "shrink": trained("CatBoostRegressor", model_shrink_rate=0.2),
    "no boost from average": trained("CatBoostRegressor", boost_from_average=False),
    "ordered": trained("CatBoostRegressor", boosting_type="Ordered"),
    "pickle": trained("CatBoostRegressor", file="pkl"),
    "Poisson pickle": trained("CatBoostRegressor", "Poisson", label="positive", file="pkl"),
    "few borders": trained("CatBoostRegressor", border_count=3),
    "categories": with_categories,
    "texts": with_texts,
}
