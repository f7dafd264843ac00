"""Estimators of scikit-learn as pickles, asked by `predict` and `predict_proba`, or `transform`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import (
    calibration,
    cluster,
    compose,
    decomposition,
    discriminant_analysis,
    dummy,
    ensemble,
    feature_extraction,
    feature_selection,
    gaussian_process,
    impute,
    isotonic,
    kernel_approximation,
    linear_model,
    mixture,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)
from xgboost import XGBClassifier

from tests.import_corpus import Case, Writer, data, dumped, rows_at

TEXTS = ["good film", "a bad, bad film", "Good acting and a good story", "boring", "the story is not bad"]
TEXTS += ["caf\u00e9 scene"]
_UNSEEN = ["", "unseen words", "GOOD", "bad-good, film!", "  spaces  ", "caf\u00e9", "a b c"]
_NEAR = 1e-3


def thresholds_of(model: Any) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    if hasattr(model, "tree_"):
        inner = model.tree_.children_left != -1
        found += zip(model.tree_.feature[inner], model.tree_.threshold[inner], strict=True)
    rows = [each if isinstance(each, (list, np.ndarray)) else [each] for each in getattr(model, "estimators_", [])]
    for part in (part for row in rows for part in row):
        if hasattr(part, "tree_"):
            found += thresholds_of(part)
    for trees in getattr(model, "_predictors", []):
        for each in trees:
            nodes = each.nodes[each.nodes["is_leaf"] == 0]
            found += zip(nodes["feature_idx"], nodes["num_threshold"], strict=True)
    return [(int(feature), float(number)) for feature, number in found if np.isfinite(number)]


def public(model: Any, table: Any) -> list[Any]:
    if not hasattr(model, "predict"):
        answer = model.transform(table)
        return [answer.toarray() if hasattr(answer, "toarray") else answer]
    answers = [model.predict(table)]
    if hasattr(model, "predict_proba"):
        answers.append(model.predict_proba(table))
    return answers


def fitted(
    model: Any,
    label: str = "two",
    *,
    missing: float = 0.0,
    special: Sequence[float] = (0.0, -0.0, 1e6, -1e6, 1e-30),
    positive: bool = False,
    dtype: Any = np.float64,
    file: str = "joblib",
    options: Sequence[str] = (),
    near: float = _NEAR,
    far: float = 0.0,
) -> Writer:
    """A model of numbers alone, without names, which lie at `far`."""

    def write(folder: Path, random: np.random.Generator) -> Case:
        given = data(random, missing)
        x = np.abs(given.x) if positive else given.x
        if far:
            x = (x + random.normal(size=x.shape) + far).astype(np.float32)
        model.fit(x.astype(dtype), given.label(label))
        path = folder / f"model.{file}"
        if file == "skops":
            import skops.io

            skops.io.dump(model, path)
        else:
            dumped(model, path)
        odd = [*special, *([np.nan] * 3 if missing else [])]
        rows = rows_at(random, x, thresholds_of(model), special=odd)
        if positive:
            rows = np.abs(rows)
        return Case(
            path, {"": rows}, lambda asked: public(model, next(iter(asked.values())).astype(dtype)), options, near
        )

    return write


def categories_of_trees(folder: Path, random: np.random.Generator) -> Case:
    given = data(random, 0.1)
    x = given.x.copy()
    x[:, 1] = random.integers(0, 5, len(x))
    model = ensemble.HistGradientBoostingClassifier(categorical_features=[1], max_iter=10, min_samples_leaf=5)
    model.fit(x, (x[:, 1] % 2 + np.nan_to_num(x[:, 0]) > 0.5).astype(int))
    rows = rows_at(random, x, [], special=(0.0, np.nan), categories={1: [*range(7), np.nan, -1]})
    return Case(
        dumped(model, folder / "model.joblib"),
        {"": rows},
        lambda asked: public(model, next(iter(asked.values()))),
        (),
        _NEAR,
    )


def of_texts(model: Any, *, options: Sequence[str] = ()) -> Writer:
    """One text a row."""

    def write(folder: Path, random: np.random.Generator) -> Case:
        texts = [TEXTS[at] for at in random.integers(0, len(TEXTS), 60)]
        model.fit(texts, [int("good" in each.lower()) for each in texts])
        asked = np.array(TEXTS + _UNSEEN, object)[:, None]
        return Case(
            dumped(model, folder / "model.joblib"),
            {"": asked},
            lambda given: public(model, [str(each) for each in next(iter(given.values()))[:, 0]]),
            options,
            _NEAR,
        )

    return write


_COLORS = ["red", "green", "blue"]
_SIZES = ["s", "m", "l", "xl"]


def frame(random: np.random.Generator, rows: int, colors: Sequence[str] = _COLORS) -> Any:
    return pd.DataFrame(
        {
            "color": np.array(colors, object)[random.integers(0, len(colors), rows)],
            "size": np.array(_SIZES, object)[random.integers(0, 4, rows)],
            "age": np.round(random.normal(size=rows) * 4).astype(np.float64),
            "weight": random.normal(size=rows),
        }
    )


def of_columns(
    model: Any, columns: Sequence[str], *, unseen: Sequence[str] = (), as_array: bool = False, needs_label: bool = True
) -> Writer:
    """A model of columns, with texts among them, fitted on a table or on its values alone."""

    def write(folder: Path, random: np.random.Generator) -> Case:
        whole = frame(random, 120)
        label = (whole["age"] > 0).to_numpy().astype(int)
        table = whole[list(columns)]
        given = table.to_numpy() if as_array else table
        model.fit(given, label) if needs_label else model.fit(given)
        asked = frame(random, 100, [*_COLORS, *unseen])[list(columns)]
        kinds = [each.dtype.kind == "f" for _, each in asked.items()]
        names = [f"x{number}" for number in range(len(columns))] if as_array else columns
        rows: Mapping[str, Any] = {
            name: asked[[column]].to_numpy(np.float32 if is_number else object)
            for name, column, is_number in zip(names, columns, kinds, strict=True)
        }
        if all(kinds):
            rows = {"": asked.to_numpy(np.float32)}
        numbers = asked.astype({name: np.float32 for name, kind in zip(columns, kinds, strict=True) if kind})
        table_asked = numbers.to_numpy() if as_array else numbers
        return Case(dumped(model, folder / "model.joblib"), rows, lambda _: public(model, table_asked), (), _NEAR)

    return write


piped = pipeline.make_pipeline
_MIXED = ("color", "size", "age", "weight")


def mixed(final: Any, unknown: str = "ignore") -> Any:
    """The usual columns: categories encoded, numbers filled in and scaled."""
    return piped(
        compose.ColumnTransformer(
            [
                ("categories", preprocessing.OneHotEncoder(handle_unknown=unknown), ["color", "size"]),
                ("numbers", piped(impute.SimpleImputer(), preprocessing.StandardScaler()), ["age", "weight"]),
            ]
        ),
        final,
    )


_LINEAR = linear_model
CASES: dict[str, Writer] = {
    "LogisticRegression": fitted(_LINEAR.LogisticRegression()),
    "LogisticRegression of names": fitted(_LINEAR.LogisticRegression(), "names"),
    "LogisticRegressionCV": fitted(_LINEAR.LogisticRegressionCV(cv=2), "three"),
    "LinearRegression": fitted(_LINEAR.LinearRegression(), "number"),
    "LinearRegression of two": fitted(_LINEAR.LinearRegression(), "numbers"),
    "Ridge": fitted(_LINEAR.Ridge(), "number"),
    "RidgeClassifier": fitted(_LINEAR.RidgeClassifier(), "three"),
    "Lasso": fitted(_LINEAR.Lasso(0.01), "number"),
    "ElasticNet": fitted(_LINEAR.ElasticNet(0.01), "number"),
    "BayesianRidge": fitted(_LINEAR.BayesianRidge(), "number"),
    "HuberRegressor": fitted(_LINEAR.HuberRegressor(max_iter=500), "number"),
    "PoissonRegressor": fitted(_LINEAR.PoissonRegressor(), "positive", special=(0.0,)),
    "GammaRegressor": fitted(_LINEAR.GammaRegressor(), "positive", special=(0.0,)),
    "TweedieRegressor": fitted(_LINEAR.TweedieRegressor(power=1.5), "positive", special=(0.0,)),
    "QuantileRegressor": fitted(_LINEAR.QuantileRegressor(alpha=0.01), "number"),
    "SGDClassifier": fitted(_LINEAR.SGDClassifier(loss="log_loss", random_state=0)),
    "SGDClassifier of three": fitted(_LINEAR.SGDClassifier(random_state=0), "three"),
    "SGDClassifier modified": fitted(_LINEAR.SGDClassifier(loss="modified_huber", random_state=0), "three"),
    "SGDRegressor": fitted(_LINEAR.SGDRegressor(random_state=0), "number"),
    "Perceptron": fitted(_LINEAR.Perceptron(), "three"),
    "PassiveAggressive": fitted(_LINEAR.PassiveAggressiveClassifier(random_state=0)),
    "RANSAC": fitted(_LINEAR.RANSACRegressor(random_state=0), "number"),
    "DecisionTreeClassifier": fitted(tree.DecisionTreeClassifier(random_state=0), "three"),
    "DecisionTreeClassifier of labels": fitted(tree.DecisionTreeClassifier(random_state=0), "labels"),
    "DecisionTreeRegressor": fitted(tree.DecisionTreeRegressor(random_state=0), "number"),
    "DecisionTreeRegressor of two": fitted(tree.DecisionTreeRegressor(random_state=0), "numbers"),
    "DecisionTreeRegressor with missing": fitted(tree.DecisionTreeRegressor(random_state=0), "number", missing=0.2),
    "ExtraTreeRegressor": fitted(tree.ExtraTreeRegressor(random_state=0), "number"),
    "RandomForestClassifier": fitted(ensemble.RandomForestClassifier(20, random_state=0)),
    "RandomForestClassifier of names": fitted(ensemble.RandomForestClassifier(20, random_state=0), "names"),
    "RandomForestClassifier with missing": fitted(ensemble.RandomForestClassifier(20, random_state=0), missing=0.2),
    "RandomForestClassifier of labels": fitted(ensemble.RandomForestClassifier(10, random_state=0), "labels"),
    "RandomForestRegressor": fitted(ensemble.RandomForestRegressor(20, random_state=0), "number"),
    "RandomForestRegressor of two": fitted(ensemble.RandomForestRegressor(20, random_state=0), "numbers"),
    "ExtraTreesClassifier": fitted(ensemble.ExtraTreesClassifier(20, random_state=0), "three"),
    "ExtraTreesRegressor": fitted(ensemble.ExtraTreesRegressor(20, random_state=0), "number"),
    "GradientBoostingClassifier": fitted(ensemble.GradientBoostingClassifier(n_estimators=20, random_state=0)),
    "GradientBoostingClassifier of three": fitted(ensemble.GradientBoostingClassifier(n_estimators=9), "three"),
    "GradientBoostingRegressor": fitted(ensemble.GradientBoostingRegressor(n_estimators=20), "number"),
    "GradientBoostingRegressor from zero": fitted(
        ensemble.GradientBoostingRegressor(n_estimators=9, init="zero", loss="huber"), "number"
    ),
    "HistGradientBoostingClassifier": fitted(ensemble.HistGradientBoostingClassifier(max_iter=15, min_samples_leaf=5)),
    "HistGradientBoostingClassifier of three": fitted(
        ensemble.HistGradientBoostingClassifier(max_iter=10, min_samples_leaf=5), "three", missing=0.2
    ),
    "HistGradientBoostingRegressor": fitted(
        ensemble.HistGradientBoostingRegressor(max_iter=15, min_samples_leaf=5), "number", missing=0.2
    ),
    "HistGradientBoostingRegressor of counts": fitted(
        ensemble.HistGradientBoostingRegressor(max_iter=15, min_samples_leaf=5, loss="poisson"), "positive"
    ),
    "HistGradientBoosting with categories": categories_of_trees,
    "IsolationForest": fitted(
        ensemble.IsolationForest(n_estimators=20, random_state=0), "none", special=(0.0, 9.0, -9.0)
    ),
    "AdaBoostClassifier": fitted(ensemble.AdaBoostClassifier(n_estimators=9), "three"),
    "AdaBoostRegressor": fitted(ensemble.AdaBoostRegressor(n_estimators=9, random_state=0), "number"),
    "BaggingClassifier": fitted(ensemble.BaggingClassifier(n_estimators=5, random_state=0)),
    "BaggingRegressor of columns": fitted(
        ensemble.BaggingRegressor(n_estimators=5, max_features=0.5, random_state=0), "number"
    ),
    "VotingClassifier": fitted(
        ensemble.VotingClassifier(
            [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier())], voting="soft"
        )
    ),
    "VotingClassifier hard": fitted(
        ensemble.VotingClassifier([("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier())])
    ),
    "VotingRegressor": fitted(ensemble.VotingRegressor([("a", _LINEAR.Ridge()), ("b", _LINEAR.Lasso())]), "number"),
    "StackingClassifier": fitted(
        ensemble.StackingClassifier(
            [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier())], cv=2
        )
    ),
    "StackingRegressor": fitted(ensemble.StackingRegressor([("a", _LINEAR.Ridge())], cv=2), "number"),
    "SVC": fitted(svm.SVC(), "three", special=(0.0, 3.0)),
    "SVC of two": fitted(svm.SVC(kernel="poly"), special=(0.0, 3.0)),
    "SVC with probabilities": fitted(svm.SVC(probability=True, random_state=0), special=(0.0, 3.0)),
    "NuSVC": fitted(svm.NuSVC(nu=0.2), special=(0.0, 3.0)),
    "SVR": fitted(svm.SVR(), "number", special=(0.0, 3.0)),
    "LinearSVC": fitted(svm.LinearSVC(), "three"),
    "LinearSVR": fitted(svm.LinearSVR(), "number"),
    "OneClassSVM": fitted(svm.OneClassSVM(nu=0.2), "none", special=(0.0, 3.0)),
    "KNeighborsClassifier": fitted(neighbors.KNeighborsClassifier(3), "three", special=(0.0,)),
    "KNeighborsRegressor": fitted(neighbors.KNeighborsRegressor(3, weights="distance"), "number", special=(0.0,)),
    "RadiusNeighborsRegressor": fitted(neighbors.RadiusNeighborsRegressor(4.0), "number", special=(0.0,)),
    "NearestCentroid": fitted(neighbors.NearestCentroid(), "three"),
    "LocalOutlierFactor": fitted(neighbors.LocalOutlierFactor(novelty=True), "none", special=(0.0, 3.0)),
    "KMeans": fitted(cluster.KMeans(3, random_state=0, n_init=2), "none", special=(0.0, 9.0)),
    "KMeans in FP32": fitted(cluster.KMeans(3, random_state=0, n_init=2), "none", special=(0.0, 9.0), dtype=np.float32),
    "MiniBatchKMeans": fitted(cluster.MiniBatchKMeans(3, random_state=0, n_init=2), "none", special=(0.0, 9.0)),
    "GaussianNB": fitted(naive_bayes.GaussianNB(), "three", special=(0.0,)),
    "MultinomialNB": fitted(naive_bayes.MultinomialNB(), "three", positive=True, special=(0.0,)),
    "BernoulliNB": fitted(naive_bayes.BernoulliNB(), "three"),
    "ComplementNB": fitted(naive_bayes.ComplementNB(), "three", positive=True, special=(0.0,)),
    "CategoricalNB": fitted(naive_bayes.CategoricalNB(min_categories=30), "three", positive=True, special=(0.0,)),
    "LinearDiscriminantAnalysis": fitted(discriminant_analysis.LinearDiscriminantAnalysis(), "three"),
    "QuadraticDiscriminantAnalysis": fitted(
        discriminant_analysis.QuadraticDiscriminantAnalysis(), "three", special=(0.0,)
    ),
    "MLPClassifier": fitted(neural_network.MLPClassifier((8,), max_iter=100, random_state=0), "three", special=(0.0,)),
    "MLPRegressor": fitted(
        neural_network.MLPRegressor(hidden_layer_sizes=(8,), max_iter=100, random_state=0), "number", special=(0.0,)
    ),
    "GaussianProcessRegressor": fitted(gaussian_process.GaussianProcessRegressor(alpha=0.1), "number", special=(0.0,)),
    "GaussianProcessClassifier": fitted(gaussian_process.GaussianProcessClassifier(), special=(0.0,)),
    "GaussianMixture": fitted(mixture.GaussianMixture(2, random_state=0), "none", special=(0.0,)),
    "BayesianGaussianMixture": fitted(
        mixture.BayesianGaussianMixture(n_components=2, random_state=0), "none", special=(0.0,)
    ),
    "CalibratedClassifierCV": fitted(calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=2)),
    "CalibratedClassifierCV isotonic": fitted(
        calibration.CalibratedClassifierCV(_LINEAR.LogisticRegression(), cv=2, method="isotonic"), special=(0.0,)
    ),
    "MultiOutputClassifier": fitted(multioutput.MultiOutputClassifier(_LINEAR.LogisticRegression()), "labels"),
    "MultiOutputRegressor": fitted(multioutput.MultiOutputRegressor(_LINEAR.Ridge()), "numbers"),
    "ClassifierChain": fitted(multioutput.ClassifierChain(_LINEAR.LogisticRegression()), "labels"),
    "OneVsRestClassifier": fitted(multiclass.OneVsRestClassifier(_LINEAR.LogisticRegression()), "three"),
    "OneVsOneClassifier": fitted(multiclass.OneVsOneClassifier(_LINEAR.LogisticRegression()), "three"),
    "OutputCodeClassifier": fitted(
        multiclass.OutputCodeClassifier(_LINEAR.LogisticRegression(), random_state=0), "three"
    ),
    "DummyClassifier": fitted(dummy.DummyClassifier()),
    "IsotonicRegression": fitted(
        piped(feature_selection.SelectKBest(k=1), isotonic.IsotonicRegression(out_of_bounds="clip")), "number"
    ),
    "TransformedTargetRegressor": fitted(
        compose.TransformedTargetRegressor(_LINEAR.Ridge(), func=np.log1p, inverse_func=np.expm1),
        "positive",
        special=(0.0,),
    ),
    # transformers
    "StandardScaler": fitted(preprocessing.StandardScaler(), "none"),
    "MinMaxScaler": fitted(preprocessing.MinMaxScaler(clip=True), "none"),
    "RobustScaler": fitted(preprocessing.RobustScaler(), "none"),
    "MaxAbsScaler": fitted(preprocessing.MaxAbsScaler(), "none"),
    "Normalizer": fitted(preprocessing.Normalizer(), "none", special=(0.0,)),
    "Binarizer": fitted(preprocessing.Binarizer(threshold=0.5), "none"),
    "PolynomialFeatures": fitted(preprocessing.PolynomialFeatures(2), "none", special=(0.0,)),
    "KBinsDiscretizer": fitted(preprocessing.KBinsDiscretizer(3, encode="ordinal"), "none", special=(0.0,)),
    "PowerTransformer": fitted(preprocessing.PowerTransformer(), "none", special=(0.0,)),
    "QuantileTransformer": fitted(preprocessing.QuantileTransformer(n_quantiles=20), "none", special=(0.0,)),
    "SplineTransformer": fitted(preprocessing.SplineTransformer(), "none", special=(0.0,)),
    "PCA": fitted(decomposition.PCA(2), "none"),
    "PCA whitened": fitted(decomposition.PCA(2, whiten=True), "none"),
    "TruncatedSVD": fitted(decomposition.TruncatedSVD(2, random_state=0), "none"),
    "KernelPCA": fitted(decomposition.KernelPCA(2, kernel="rbf"), "none", special=(0.0,)),
    "FastICA": fitted(decomposition.FastICA(2, random_state=0), "none", special=(0.0,)),
    "NMF": fitted(decomposition.NMF(2, random_state=0, max_iter=500), "none", positive=True, special=(0.0,)),
    "SelectKBest": fitted(feature_selection.SelectKBest(k=2), "two"),
    "SimpleImputer": fitted(impute.SimpleImputer(add_indicator=True), "none", missing=0.2),
    "KNNImputer": fitted(impute.KNNImputer(), "none", missing=0.2, special=(0.0,)),
    "Nystroem": fitted(kernel_approximation.Nystroem(n_components=5, random_state=0), "none", special=(0.0,)),
    # pipelines of numbers
    "scaled LogisticRegression": fitted(piped(preprocessing.StandardScaler(), _LINEAR.LogisticRegression()), "three"),
    "scaled SVC": fitted(piped(preprocessing.StandardScaler(), svm.SVC()), "three", special=(0.0,)),
    "scaled forest": fitted(
        piped(preprocessing.StandardScaler(), ensemble.RandomForestClassifier(10, random_state=0)), "three"
    ),
    "components of a Ridge": fitted(piped(decomposition.PCA(2), _LINEAR.Ridge()), "number"),
    "filled in and boosted": fitted(
        piped(impute.SimpleImputer(), ensemble.GradientBoostingRegressor(n_estimators=9)), "number", missing=0.2
    ),
    "skops": fitted(piped(preprocessing.StandardScaler(), _LINEAR.LogisticRegression()), "names", file="skops"),
    "boosted in a pipeline": fitted(piped(preprocessing.StandardScaler(), XGBClassifier(n_estimators=5)), "three"),
    "LogisticRegression of booleans": fitted(_LINEAR.LogisticRegression(), "booleans"),
    # far from zero
    "far KNeighborsRegressor": fitted(neighbors.KNeighborsRegressor(3), "number", far=1e4, special=()),
    "far KBinsDiscretizer": fitted(
        preprocessing.KBinsDiscretizer(5, encode="ordinal", strategy="uniform"), "none", far=1e4, special=()
    ),
    "far SVR": fitted(piped(preprocessing.StandardScaler(), svm.SVR()), "number", far=1e4, special=()),
    "far StackingRegressor": fitted(
        ensemble.StackingRegressor(
            [("a", piped(preprocessing.StandardScaler(), _LINEAR.Ridge())), ("b", neighbors.KNeighborsRegressor(3))],
            cv=2,
            passthrough=True,
        ),
        "number",
        far=1e4,
        special=(),
    ),
    "searched": fitted(
        __import__("sklearn.model_selection", fromlist=["GridSearchCV"]).GridSearchCV(
            _LINEAR.LogisticRegression(), {"C": [0.1, 1]}, cv=2
        )
    ),
    # texts and columns
    "counted words": of_texts(piped(feature_extraction.text.CountVectorizer(), _LINEAR.LogisticRegression())),
    "counted words of names": of_texts(
        piped(feature_extraction.text.CountVectorizer(binary=True), naive_bayes.BernoulliNB())
    ),
    "weighted words": of_texts(piped(feature_extraction.text.TfidfVectorizer(), _LINEAR.LogisticRegression())),
    "weighted pairs of words": of_texts(
        piped(feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2), stop_words=["a", "the"]), svm.LinearSVC())
    ),
    "letters": of_texts(
        piped(
            feature_extraction.text.TfidfVectorizer(analyzer="char", ngram_range=(2, 3)), _LINEAR.LogisticRegression()
        )
    ),
    "hashed words": of_texts(
        piped(feature_extraction.text.HashingVectorizer(n_features=64), _LINEAR.LogisticRegression())
    ),
    "vectors of words": of_texts(feature_extraction.text.TfidfVectorizer()),
    "OneHotEncoder": of_columns(preprocessing.OneHotEncoder(sparse_output=False), ["color", "size"], needs_label=False),
    "OneHotEncoder of unseen": of_columns(
        preprocessing.OneHotEncoder(handle_unknown="ignore"), ["color", "size"], unseen=["pink", ""], needs_label=False
    ),
    "OneHotEncoder of values": of_columns(
        preprocessing.OneHotEncoder(handle_unknown="ignore"), ["color", "size"], as_array=True, needs_label=False
    ),
    "OrdinalEncoder": of_columns(preprocessing.OrdinalEncoder(), ["color", "size"], needs_label=False),
    "OrdinalEncoder of missing": fitted(
        preprocessing.OrdinalEncoder(encoded_missing_value=-7, handle_unknown="use_encoded_value", unknown_value=-1),
        "none",
        missing=0.2,
    ),
    "passed through": fitted(pipeline.Pipeline([("a", "passthrough"), ("b", _LINEAR.Ridge())]), "number"),
    "OrdinalEncoder of unseen": of_columns(
        preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        ["color"],
        unseen=["pink"],
        needs_label=False,
    ),
    "encoded and classified": of_columns(
        piped(preprocessing.OneHotEncoder(handle_unknown="ignore"), _LINEAR.LogisticRegression()),
        ["color", "size"],
        unseen=["pink"],
    ),
    "numbers of a table": of_columns(_LINEAR.LogisticRegression(), ["age", "weight"]),
    "columns and a regression": of_columns(mixed(_LINEAR.LogisticRegression()), _MIXED, unseen=["pink"]),
    "columns that must be known": of_columns(mixed(_LINEAR.LogisticRegression(), "error"), _MIXED),
    "columns and a forest": of_columns(mixed(ensemble.RandomForestClassifier(10, random_state=0)), _MIXED),
    "columns of numbers": of_columns(
        piped(
            compose.ColumnTransformer(
                [("a", preprocessing.StandardScaler(), ["weight"]), ("b", preprocessing.MinMaxScaler(), ["age"])]
            ),
            _LINEAR.LogisticRegression(),
        ),
        ["age", "weight"],
    ),
    "columns with the rest": of_columns(
        piped(
            compose.ColumnTransformer(
                [("a", preprocessing.OrdinalEncoder(), ["color", "size"])], remainder=preprocessing.StandardScaler()
            ),
            ensemble.GradientBoostingClassifier(n_estimators=9),
        ),
        _MIXED,
    ),
}
