"""Serves the python_function of an MLflow folder, which is in the folder `mlflow` beside this file.

A column of its signature is an input with one value a row, a tensor an input of its own shape; the answer is the output
`predictions`, or one output for each column. Written by `trident import`.
"""

from pathlib import Path

import mlflow.pyfunc
import numpy as np
import pandas as pd
import triton_python_backend_utils as pb_utils
from mlflow.models import get_model_info

FOLDER = str(Path(__file__).with_name("mlflow"))
TYPES = {
    "string": "TYPE_STRING",
    "object": "TYPE_STRING",
    "str": "TYPE_STRING",
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    **{f"int{bits}": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
}


def described(schema, otherwise):
    """Name, type and dims without the batch of each column or tensor of a signature."""
    if schema is None:
        raise ValueError(
            "the MLflow model has no signature: log it with one, or write inputs and outputs into config.pbtxt"
        )
    found = []
    for number, spec in enumerate(schema.inputs):
        tensor = hasattr(spec, "shape")
        dtype = np.dtype(spec.type if tensor else spec.type.to_numpy())
        kind = TYPES.get("string" if dtype.kind in "OUS" else dtype.name)
        name = spec.name or (otherwise if len(schema.inputs) == 1 else f"{otherwise}_{number}")
        found.append({"name": name, "data_type": kind, "dims": list(spec.shape[1:]) or [1] if tensor else [1]})
    return found


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        signature = get_model_info(FOLDER).signature
        if signature is None:
            described(None, "")
        for entry in described(signature.inputs, "inputs"):
            config.add_input(entry)
        for entry in described(signature.outputs, "predictions"):
            config.add_output(entry)
        return config

    def initialize(self, args):
        self.model = mlflow.pyfunc.load_model(FOLDER)
        signature = self.model.metadata.signature
        self.inputs = [entry["name"] for entry in described(signature.inputs, "inputs")]
        self.outputs = described(signature.outputs, "predictions")
        self.is_table = not signature.inputs.is_tensor_spec()
        self.has_names = any(spec.name for spec in signature.inputs.inputs)

    def execute(self, requests):
        parts = [
            [pb_utils.get_input_tensor_by_name(each, name).as_numpy() for name in self.inputs] for each in requests
        ]
        joined = {name: np.concatenate(arrays) for name, arrays in zip(self.inputs, zip(*parts))}
        sizes = [len(arrays[0]) for arrays in parts]
        answers = self.arrays(self.model.predict(self.argument(joined)), sum(sizes))
        ends = np.cumsum(sizes)[:-1]
        divided = {name: np.split(array, ends) for name, array in answers.items()}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, arrays[number]) for name, arrays in divided.items()])
            for number in range(len(requests))
        ]

    def argument(self, joined):
        if not self.is_table:
            return joined if self.has_names else next(iter(joined.values()))
        columns = {
            name: [value.decode() for value in array[:, 0]] if array.dtype.kind == "O" else array[:, 0]
            for name, array in joined.items()
        }
        table = pd.DataFrame(columns)
        return table if self.has_names else table.to_numpy()

    def arrays(self, answer, rows):
        """The outputs that the configuration names, each with the rows of the batch in front."""
        if isinstance(answer, pd.DataFrame):
            columns = [answer.get(each["name"], answer) for each in self.outputs]
        else:
            columns = list(answer.values()) if isinstance(answer, dict) else [answer]
        found = {}
        for entry, column in zip(self.outputs, columns):
            array = np.asarray(column)
            if entry["data_type"] == "TYPE_STRING":
                array = array.astype(object)
            elif array.dtype.kind != "O":
                array = array.astype(pb_utils.triton_string_to_numpy(entry["data_type"]))
            found[entry["name"]] = array.reshape(rows, -1) if array.ndim < 2 else array
        return found
