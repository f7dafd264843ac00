"""A Ray Data job that maps the rows of a data set through a model.

    python -m deploy.ray.batch deploy/models simple input.parquet output

Source: deploy/ray/README.md.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

import trident


class Mapper:
    """Adds a column for each output to batches that have one for each input. One actor, with one server."""

    def __init__(self, repository: str, model: str) -> None:
        self._server = trident.Server(repository, load_model=model, model_control_mode="explicit")
        self._model = self._server.model(model)
        metadata = self._model.metadata()
        self._inputs = [each["name"] for each in metadata["inputs"]]
        self._largest = self._model.config()["max_batch_size"]

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        columns = {name: np.stack(list(batch[name])) for name in self._inputs}
        size = len(next(iter(columns.values())))
        # The model's largest batch at a time, all in its queue at once.
        answers = [
            self._model.submit({name: column[at : at + self._largest] for name, column in columns.items()})
            for at in range(0, size, self._largest)
        ]
        made = [each.result() for each in answers]
        return {**batch, **{name: np.concatenate([each[name] for each in made]) for name in made[0]}}


def mapped(dataset: ray.data.Dataset, repository: str, model: str, *, actors: int = 1) -> ray.data.Dataset:
    """`dataset` with the outputs of a model that batches; `actors` servers share the work."""
    arguments = {"repository": repository, "model": model}
    return dataset.map_batches(Mapper, fn_constructor_kwargs=arguments, batch_size=1024, concurrency=actors)


if __name__ == "__main__":
    repository, model, source, target = sys.argv[1:]
    mapped(ray.data.read_parquet(source), repository, model).write_parquet(target)
