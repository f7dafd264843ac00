"""Serves an estimator of scikit-learn that could not be converted: the pickle beside this file.

Reading a pickle runs what its author has put into it. Written by `trident import`.
"""

from pathlib import Path

import joblib
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.model = joblib.load(Path(__file__).with_name("model.pickle"))

    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        rows = np.concatenate(parts)
        answers = {"label": np.asarray(self.model.predict(rows))}
        if answers["label"].dtype.kind in "US":
            answers["label"] = answers["label"].astype(object)
        if hasattr(self.model, "predict_proba"):
            answers["probabilities"] = np.asarray(self.model.predict_proba(rows), np.float64)
        ends = np.cumsum([len(part) for part in parts])[:-1]
        divided = {name: np.split(array, ends) for name, array in answers.items()}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, arrays[number]) for name, arrays in divided.items()])
            for number in range(len(requests))
        ]
