"""Warmup samples, and the initial states of sequences."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from tests.unit.core.config.sequence_configs import normalized
from trident.core.config.resolve import (
    WarmupSample,
    initial_states,
    resolve_model_spec,
    resolve_sequence_spec,
    warmup_problems,
    warmup_samples,
)
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import ConfigInvalid
from trident.core.inference.tensors import Array, pack_bytes


def samples(directory: Path, value: str) -> list[WarmupSample]:
    text = f'model_warmup {{ name: "s" batch_size: 1 inputs {{ key: "IN" value {{ {value} }} }} }}'
    return warmup_samples(text_format.Parse(text, ModelConfig(name="m")), directory)


def array(directory: Path, value: str) -> Array:
    return samples(directory, value)[0].inputs[0].array


def write(directory: Path, content: bytes) -> None:
    (directory / "warmup").mkdir()
    (directory / "warmup" / "raw").write_bytes(content)


def test_random_bools_are_valid(tmp_path: Path) -> None:
    bools = array(tmp_path, "data_type: TYPE_BOOL dims: [ 64 ] random_data: true")
    assert set(bools.view(np.uint8).tolist()) == {0, 1}


def test_file_supplies_strings(tmp_path: Path) -> None:
    write(tmp_path, pack_bytes([b"a\0b", b""]))
    value = 'data_type: TYPE_STRING dims: [ 2 ] input_data_file: "raw"'
    assert array(tmp_path, value).tolist() == [b"a\0b", b""]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("dims: [ 1 ] zero_data: true", "warmup setting expects input 'IN' to have 'data_type' set"),
        (
            'data_type: TYPE_INT64 dims: [ 2 ] input_data_file: "../../raw"',
            "warmup file path '../../raw' for input 'IN' in model 'm' is outside model directory",
        ),
        (
            'data_type: TYPE_INT64 dims: [ 2 ] input_data_file: "pipe"',
            "failed to open text file for read FOLDER/warmup/pipe: it is not a regular file",
        ),
        (
            'data_type: TYPE_STRING dims: [ 2 ] input_data_file: "huge"',
            "failed to open text file for read FOLDER/warmup/huge: it has 1099511627776 bytes, and may have 4294967296",
        ),
    ],
)
def test_invalid_sample_has_the_text_of_triton(tmp_path: Path, value: str, message: str) -> None:
    write(tmp_path, pack_bytes([b"12345"]))
    os.mkfifo(tmp_path / "warmup" / "pipe")
    with (tmp_path / "warmup" / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigInvalid) as caught:
        samples(tmp_path, value)
    assert caught.value.message == message.replace("FOLDER", str(tmp_path))


def spec(max_batch_size: int) -> ModelSpec:
    text = f'max_batch_size: {max_batch_size} input {{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }} '
    text += 'output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }'
    return resolve_model_spec(text_format.Parse(text, ModelConfig(name="m")), 1, {})


def found(directory: Path, value: str, *, batch_size: int = 1, max_batch_size: int = 4, name: str = "IN") -> list[str]:
    """The problems of the second of three samples; the other two are valid."""
    good = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } '
    text = f'model_warmup {{ name: "first" batch_size: 1 {good} }} '
    text += f'model_warmup {{ name: "s" batch_size: {batch_size} inputs {{ key: "{name}" value {{ {value} }} }} }} '
    text += f'model_warmup {{ name: "last" batch_size: 1 {good} }} '
    config = text_format.Parse(text, ModelConfig(name="m"))
    problems = warmup_problems(config, spec(max_batch_size), directory)
    assert {problem.path for problem in problems} <= {"model_warmup[1]"}
    return [problem.message for problem in problems]


def test_impossible_sample_does_not_hide_other_problems(tmp_path: Path) -> None:
    assert found(tmp_path, "dims: [ 1 ] zero_data: true") == [
        "warmup setting expects input 'IN' to have 'data_type' set"
    ]
    for dims in ("[ 1000000000000 ]", "[ 1000000000, 1000000000, 1000000000 ]"):
        assert len(found(tmp_path, f"data_type: TYPE_FP64 dims: {dims} zero_data: true", name="X")) == 1


def read(folder: Path, initial: str = "", data_type: str = "TYPE_INT32", dims: str = "2, -1") -> Array:
    made = f'initial_state {{ name: "n" data_type: {data_type} {initial} }}' if initial else ""
    config = normalized(f'state {{ input_name: "I" output_name: "O" data_type: {data_type} dims: [ {dims} ] {made} }}')
    spec = resolve_sequence_spec(config)
    assert spec is not None
    return initial_states(config, spec.states, folder)["I"]


def put(folder: Path, content: bytes) -> None:
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "data").write_bytes(content)


def test_data_comes_from_a_file(tmp_path: Path) -> None:
    put(tmp_path, np.arange(5, dtype=np.int32).tobytes())
    assert read(tmp_path, 'dims: [ 2, 2 ] data_file: "data"').tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("initial", "reason"),
    [
        ('dims: [ 2, 1 ] data_file: "none"', "failed to open text file for read "),
        ('dims: [ 2, 1 ] data_file: "../../data"', "is outside model directory"),
        (
            'dims: [ 2, 9 ] data_file: "data"',
            "initial_state setting expects 72 bytes, but the data provided from data ",
        ),
        ("dims: [ 2, 4611686018427387904 ] zero_data: true", "the initial state of 'I' cannot be made: "),
    ],
)
def test_unreadable_initial_state_is_refused(tmp_path: Path, initial: str, reason: str) -> None:
    put(tmp_path, b"1234")
    with pytest.raises(ConfigInvalid) as raised:
        read(tmp_path, initial)
    assert reason in raised.value.message
