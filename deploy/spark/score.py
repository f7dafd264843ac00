"""A Spark function that adds a model's outputs to the rows of a data frame.

    spark-submit --py-files deploy/spark/score.py deploy/spark/score.py deploy/models simple input.parquet output

Source: deploy/spark/README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import trident

_TYPES = {
    "BOOL": "boolean",
    "INT8": "tinyint",
    "INT16": "smallint",
    "INT32": "int",
    "INT64": "bigint",
    "FP32": "float",
    "FP64": "double",
    "BYTES": "binary",
}


@cache
def _model(repository: str, model: str) -> trident.Model:
    """The model on a server of this process: one for each of an executor's Python workers, kept for its next tasks."""
    return trident.Server(repository, model_control_mode="explicit", load_model=model).model(model)


def scored(rows: DataFrame, repository: str, model: str) -> DataFrame:
    """`rows`, which have a column for each input, with a column of arrays for each output.

    `repository` is a path that every executor can read, or `s3://` or `gs://`. The model must batch.
    """
    metadata = _model(repository, model).metadata()
    shapes = {each["name"]: each["shape"][1:] for each in metadata["inputs"]}
    columns = ", ".join(f"`{each['name']}` array<{_TYPES[each['datatype']]}>" for each in metadata["outputs"])
    schema = ", ".join([f"`{name}` {kind}" for name, kind in rows.dtypes] + [columns])

    def score(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        served = _model(repository, model)
        largest = served.config()["max_batch_size"]
        for frame in frames:
            # The model's largest batch at a time, all in its queue at once.
            parts = [frame[at : at + largest] for at in range(0, len(frame), largest)]
            answers = [
                served.submit({name: _tensor(part[name], shape) for name, shape in shapes.items()}) for part in parts
            ]
            for part, answer in zip(parts, answers, strict=True):
                made = {name: list(values.reshape(len(part), -1)) for name, values in answer.result().items()}
                yield part.assign(**made)

    return rows.mapInPandas(score, schema)


def _tensor(column: pd.Series[Any], shape: list[int]) -> npt.NDArray[Any]:
    """The arrays of a column as one tensor; -1 in the shape is what the rows have."""
    return np.stack([np.asarray(row) for row in column]).reshape(len(column), *shape)


if __name__ == "__main__":
    repository, model, source, target = sys.argv[1:]
    session = SparkSession.builder.appName(f"trident {model}").getOrCreate()
    # As a module, which the executors find by --py-files: what is in __main__ would be copied to them for each task.
    module = import_module(Path(__file__).stem)
    module.scored(session.read.parquet(source), repository, model).write.parquet(target)
