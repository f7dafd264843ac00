"""Graphs of OpenVINO: the XML without OpenVINO, and bounds of its running time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13

from tests.unit.core.backends.openvino.test_backend import NUMERIC, add_sub, identity, only_one_row, ov_config, save
from trident.core.backends import registry as framework
from trident.core.backends.openvino.backend import OpenVinoBackend
from trident.core.backends.openvino.graph import has_bounded_graph
from trident.core.backends.openvino.model_file import signature_of_file
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import validate_against_signature
from trident.core.errors import ModelLoadFailed, NotInstalled

NO_CONFIG = ModelConfig(name="model", backend="openvino")


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    "model",
    [
        *(add_sub(), add_sub((4, 16)), add_sub((-1, 16), layout="NC"), add_sub((-1, 16), layout="CN"), only_one_row()),
        *map(identity, NUMERIC),
    ],
    ids=range(5 + len(NUMERIC)),
)
def test_the_tensors_are_those_of_openvino(version: Path, model: object, monkeypatch: pytest.MonkeyPatch) -> None:
    save(model, version)
    signature = OpenVinoBackend().inspect(version, NO_CONFIG)
    monkeypatch.setattr(framework, "find_spec", lambda name: None)
    assert OpenVinoBackend().inspect(version, NO_CONFIG) == signature
    with pytest.raises(NotInstalled):
        OpenVinoBackend().check(NO_CONFIG)


@pytest.mark.parametrize("is_there", [True, False])
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
def test_a_configuration_is_compared(
    version: Path, config: ModelConfig, fields: list[str], is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(add_sub((4, 16)), version)
    if not is_there:
        monkeypatch.setattr(framework, "find_spec", lambda name: None)
    try:
        signature = OpenVinoBackend().inspect(version, config)
        assert signature is not None
        problems = validate_against_signature(config, signature, "model")
    except InvalidModelConfig as error:
        problems = list(error.problems)
    assert [problem.path for problem in problems] == fields


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no element found"),
        (b"<net><layers>", "no element found"),
        (b"<html/>", "its first element is <html>, not <net>"),
        (b'<!DOCTYPE net [<!ENTITY a "a">]><net/>', "it has a document type"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "model.xml"
    path.write_bytes(content)
    with pytest.raises(ModelLoadFailed) as raised:
        signature_of_file(path, "model")
    assert f"'model.xml' is not a model of OpenVINO: {text}" in raised.value.message
    assert raised.value.hint


def test_missing_weights_are_named_without_openvino(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(only_one_row(), version)
    weights = version / "model.bin"
    monkeypatch.setattr(framework, "find_spec", lambda name: None)
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelLoadFailed) as cut:
        OpenVinoBackend().inspect(version, NO_CONFIG)
    assert "'model.bin' is incomplete" in (cut.value.hint or "")
    weights.unlink()
    with pytest.raises(ModelLoadFailed) as missing:
        OpenVinoBackend().inspect(version, NO_CONFIG)
    assert missing.value.hint == "put 'model.bin' beside 'model.xml'"


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
