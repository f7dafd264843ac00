"""Graphs of OpenVINO beside their configurations, and bounds of their running time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13

from tests.unit.core.backends.openvino.test_backend import add_sub, ov_config, save
from trident.core.backends.openvino.backend import OpenVinoBackend
from trident.core.backends.openvino.compiler import has_bounded_graph
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import validate_against_signature


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (ov_config(), []),
        # OpenVINO converts numbers, and serves other batches than the model's own.
        (ov_config(datatype="INT64"), []),
        (ov_config(dims=(15,)), ["input[0].dims", "input[1].dims", "output[0].dims", "output[1].dims"]),
        (ov_config(inputs=("INPUT0", "x")), ["input[1].name"]),
    ],
)
def test_a_configuration_is_compared(version: Path, config: ModelConfig, fields: list[str]) -> None:
    save(add_sub((4, 16)), version)
    try:
        signature = OpenVinoBackend().inspect(version, config)
        assert signature is not None
        problems = validate_against_signature(config, signature, "model")
    except InvalidModelConfig as error:
        problems = list(error.problems)
    assert [problem.path for problem in problems] == fields


# --- running time


FLOAT, WHOLE = openvino.Type.f32, openvino.Type.i64


def numbers(*values: int) -> Any:
    return opset13.constant(np.array(values, np.int64))


def product(rows: Any, size: Any) -> Any:
    return opset13.matmul(rows, opset13.constant(np.ones((4, 2), np.float32)), False, False)


def tile_by_constant(rows: Any, size: Any) -> Any:
    return opset13.tile(rows, numbers(2, 1))


def tile_by_input(rows: Any, size: Any) -> Any:
    return opset13.tile(rows, size)


def broadcast_to_input(rows: Any, size: Any) -> Any:
    return opset13.broadcast(opset13.constant(np.float32(1)), size)


def count_to_input(rows: Any, size: Any) -> Any:
    first = opset13.squeeze(opset13.gather(size, numbers(0), opset13.constant(0)), opset13.constant(0))
    return opset13.range(opset13.constant(np.int64(0)), first, opset13.constant(np.int64(1)), "i64")


def repeated(rows: Any, size: Any) -> Any:
    """A loop that runs while its condition holds."""
    given = opset13.parameter([-1, 4], FLOAT)
    condition = opset13.result(opset13.constant(np.array([True])))
    made = opset13.result(opset13.relu(given))
    body = openvino.Model([condition, made], [given], "body")
    loop = opset13.loop(opset13.constant(np.int64(3)), opset13.constant(np.array([True])))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(given, rows.output(0), made.output(0))
    loop.get_iter_value(made.output(0), -1)
    return loop


@pytest.mark.parametrize(
    ("operator", "bounded"),
    [
        (product, True),
        (tile_by_constant, True),
        (tile_by_input, False),
        (broadcast_to_input, False),
        (count_to_input, False),
        (repeated, False),
    ],
)
def test_graph_is_bounded_unless_a_value_decides_how_much_it_computes(operator: Any, bounded: bool) -> None:
    rows = opset13.parameter([-1, 4], FLOAT, name="rows")
    size = opset13.parameter([2], WHOLE, name="size")
    model = openvino.Model([opset13.result(operator(rows, size))], [rows, size], "model")
    assert has_bounded_graph(model) is bounded
