"""A repository of models for the tests of Vertex AI's container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import scaled
from tests.contract.vertex.vertex_container import VertexContainer
from tests.unit import onnx_models
from tests.unit.onnx_serving import add_sub_config, identity_config

WIDTH = 3
ROWS = 30
DATATYPES = tuple(onnx_models.ELEMENT_TYPES)


def identity_name(datatype: str) -> str:
    return f"identity_{datatype.lower()}"


def write_datatypes(repository: Path) -> None:
    """Write an identity model of three elements for each datatype. Its maximum batch size is 8."""
    for datatype in DATATYPES:
        model = onnx_models.identity(datatype, ["batch", WIDTH])
        onnx_models.write_version(model, repository, identity_name(datatype), identity_config(datatype, [WIDTH]))


def write_shapes(repository: Path) -> None:
    """Write `rows`, the default model of `serving` with 30 numbers a row, and models that batch in other ways."""
    write = onnx_models.write_version
    identity = onnx_models.identity
    write(identity("FP32", ["batch", ROWS]), repository, "rows", identity_config("FP32", [ROWS], 256))
    write(onnx_models.add_sub("INT32", 4), repository, "add_sub", add_sub_config(dims=[4]))
    write(onnx_models.two_outputs(), repository, "two_outputs")
    write(onnx_models.strings(["batch", 1]), repository, "text", identity_config("BYTES", [1], 64))
    write(identity("FP32", ["n"]), repository, "single", identity_config("FP32", [-1], 0))
    write(identity("FP32", ["batch", "n"]), repository, "variable", identity_config("FP32", [-1]))
    write(identity("FP32", ["batch", 2, "n"]), repository, "matrix", identity_config("FP32", [2, -1]))
    write(identity("FP32", ["batch", 2]), repository, "own_batch", identity_config("FP32", [-1, 2], 0))
    write(onnx_models.rank_one_batch(), repository, "scalar")
    write(onnx_models.picky(), repository, "picky")
    for version, factor in ((1, 10.0), (2, 20.0)):
        onnx_models.write(scaled(factor), repository / "versions" / str(version) / "model.onnx")
    (repository / "versions" / "config.pbtxt").write_text("max_batch_size: 8 version_policy { all {} }")


@contextmanager
def serving(factory: pytest.TempPathFactory, *arguments: str, **variables: str) -> Iterator[VertexContainer]:
    """A container of all these models. The default model is `rows`."""
    folder = factory.mktemp("container")
    write_datatypes(folder / "models")
    write_shapes(folder / "models")
    with VertexContainer(
        folder, folder / "models", "--vertex-ai-default-model=rows", *arguments, **variables
    ) as container:
        yield container
