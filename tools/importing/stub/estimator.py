"""Serves an estimator that could not be converted, by its own library: from a pickle of scikit-learn, or the file of
XGBoost, LightGBM or CatBoost, beside this file.

Reading a pickle runs what its author has put into it; the other files are data. Written by `trident import`, with the
names of its columns.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

# Losses of CatBoost whose models are classifiers: a file does not say it.
CLASSES = ("Logloss", "CrossEntropy", "Focal", "MultiClass", "MultiClassOneVsAll", "MultiLogloss", "MultiCrossEntropy")


class Booster:
    """A booster of XGBoost or LightGBM by one function; a score of two classes as the probabilities of both."""

    def __init__(self, score, is_binary):
        self.score, self.is_binary = score, is_binary

    def predict(self, table):
        scores = np.asarray(self.score(table))
        return np.stack([1 - scores, scores], axis=1) if self.is_binary and scores.ndim == 1 else scores


def read(path):
    if path.suffix in (".json", ".ubj"):
        import xgboost

        booster = xgboost.Booster(model_file=str(path))
        best = booster.attr("best_iteration")
        rounds = (0, int(best) + 1 if best is not None else 0)
        config = booster.save_config()

        def score(table):
            if '"gblinear"' in config:
                return booster.predict(xgboost.DMatrix(table), iteration_range=rounds, validate_features=False)
            return booster.inplace_predict(table, iteration_range=rounds, validate_features=False)

        return Booster(score, "binary:logistic" in config)
    if path.suffix == ".txt":
        import lightgbm

        booster = lightgbm.Booster(model_file=str(path))
        return Booster(booster.predict, "objective=binary" in booster.model_to_string(num_iteration=1))
    if path.suffix == ".cbm":
        import catboost

        loss = catboost.CatBoost().load_model(str(path)).get_all_params().get("loss_function", "").partition(":")[0]
        kind = catboost.CatBoostClassifier if loss in CLASSES else catboost.CatBoostRegressor
        return kind().load_model(str(path))
    if zipfile.is_zipfile(path):
        import skops.io

        return skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    import joblib

    return joblib.load(path)


class TritonPythonModel:
    def initialize(self, args):
        (file,) = (each for each in Path(__file__).parent.glob("model.*") if each.suffix != ".py")
        self.model = read(file)
        self.table = json.loads(Path(__file__).with_name("table.json").read_text())
        config = json.loads(args["model_config"])
        self.inputs = [each["name"] for each in config["input"]]
        self.outputs = [each["name"] for each in config["output"]]

    def execute(self, requests):
        parts = [
            [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs]
            for request in requests
        ]
        table = self.argument([np.concatenate(arrays) for arrays in zip(*parts)])
        try:
            answers = self.answers(table)
        except ValueError as error:
            # KMeans and others that were fitted with FP32 take nothing else.
            if "dtype mismatch" not in str(error):
                raise
            answers = self.answers(table.astype(np.float32))
        ends = np.cumsum([len(arrays[0]) for arrays in parts])[:-1]
        divided = [np.split(array, ends) for array in answers]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, arrays[number]) for name, arrays in zip(self.outputs, divided)]
            )
            for number in range(len(requests))
        ]

    def argument(self, arrays):
        """The argument of the model: a list of texts, a table with its names, or an array. Numbers are doubles, as
        estimators compute in FP32 for FP32."""
        columns = [
            np.vectorize(bytes.decode, otypes=[object])(array)
            if array.dtype.kind == "O"
            else array.astype(np.float64 if array.dtype.kind == "f" else array.dtype)
            for array in arrays
        ]
        if self.table["is_line"]:
            return list(columns[0][:, 0])
        if self.table["names"]:
            import pandas as pd

            parts = [array[:, number] for array in columns for number in range(array.shape[1])]
            return pd.DataFrame(dict(zip(self.table["names"], parts)))
        return columns[0] if len(columns) == 1 else np.concatenate([each.astype(object) for each in columns], axis=1)

    def answers(self, table):
        if "transformed" in self.outputs:
            answer = self.model.transform(table)
            found = [answer.toarray() if hasattr(answer, "toarray") else answer]
        else:
            found = [self.model.predict(table)]
            if "probabilities" in self.outputs:
                found.append(self.model.predict_proba(table))
        arrays = [np.asarray(each) for each in found]
        return [each.astype(object) if each.dtype.kind in "US" else each for each in arrays]
