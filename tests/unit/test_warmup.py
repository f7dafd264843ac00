"""Warmup samples: zeros, random tensors and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from core.config.schema import ModelConfig
from core.config.warmup import WarmupSample, warmup_samples
from core.errors import ConfigInvalid
from core.tensors import Array, pack_bytes

ID = "[request id: <id_unknown>] "


def samples(directory: Path, value: str) -> list[WarmupSample]:
    text = f'model_warmup {{ name: "s" batch_size: 1 inputs {{ key: "IN" value {{ {value} }} }} }}'
    return warmup_samples(text_format.Parse(text, ModelConfig(name="m")), directory)


def array(directory: Path, value: str) -> Array:
    return samples(directory, value)[0].inputs[0].array


def write(directory: Path, content: bytes) -> None:
    (directory / "warmup").mkdir()
    (directory / "warmup" / "raw").write_bytes(content)


def test_samples_of_no_items_are_skipped_and_a_count_of_zero_is_one(tmp_path: Path) -> None:
    text = 'model_warmup { name: "none" } model_warmup { name: "two" batch_size: 2 } '
    text += 'model_warmup { name: "often" batch_size: 1 count: 5 }'
    found = warmup_samples(text_format.Parse(text, ModelConfig(name="m")), tmp_path)
    assert [(sample.name, sample.batch_size, sample.count) for sample in found] == [("two", 2, 1), ("often", 1, 5)]


def test_zeros(tmp_path: Path) -> None:
    zeros = array(tmp_path, "data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true")
    assert zeros.dtype == np.float32
    assert zeros.shape == (2, 3)
    assert not zeros.any()


@pytest.mark.parametrize("source", ["zero_data", "random_data"])
def test_strings_are_empty(tmp_path: Path, source: str) -> None:
    assert array(tmp_path, f"data_type: TYPE_STRING dims: [ 2 ] {source}: true").tolist() == [b"", b""]


def test_random_tensors_are_the_same_each_time(tmp_path: Path) -> None:
    value = "data_type: TYPE_INT64 dims: [ 4 ] random_data: true"
    first = array(tmp_path, value)
    assert first.dtype == np.int64
    assert first.any()
    np.testing.assert_array_equal(first, array(tmp_path, value))


def test_random_bools_are_bools(tmp_path: Path) -> None:
    bools = array(tmp_path, "data_type: TYPE_BOOL dims: [ 64 ] random_data: true")
    assert set(bools.view(np.uint8).tolist()) == {0, 1}


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, np.arange(6, dtype=np.int32).tobytes())
    value = 'data_type: TYPE_INT32 dims: [ 2, 3 ] input_data_file: "raw"'
    assert array(tmp_path, value).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_of_strings(tmp_path: Path) -> None:
    write(tmp_path, pack_bytes([b"a\0b", b""]))
    value = 'data_type: TYPE_STRING dims: [ 2 ] input_data_file: "raw"'
    assert array(tmp_path, value).tolist() == [b"a\0b", b""]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "data_type: TYPE_FP32 dims: [ -1 ] zero_data: true",
            "warmup setting expects all variable-size dimensions are specified for input 'IN'",
        ),
        ("data_type: TYPE_FP32 dims: [ 1 ]", f"{ID}warmup setting expects input 'IN' to have input_data_type set"),
        ("dims: [ 1 ] zero_data: true", "warmup setting expects input 'IN' to have 'data_type' set"),
        (
            'data_type: TYPE_INT64 dims: [ 2 ] input_data_file: "raw"',
            f"{ID}warmup setting expects 16 bytes, but the data provided from raw only has 9 bytes",
        ),
        (
            'data_type: TYPE_STRING dims: [ 2 ] input_data_file: "raw"',
            f"{ID}expected 2 string elements for inference input 'IN' for model 'm', got 1",
        ),
        (
            'data_type: TYPE_INT64 dims: [ 2 ] input_data_file: "../../raw"',
            "warmup file path '../../raw' for input 'IN' in model 'm' is outside model directory",
        ),
    ],
)
def test_mistakes_have_their_texts(tmp_path: Path, value: str, message: str) -> None:
    write(tmp_path, pack_bytes([b"12345"]))
    with pytest.raises(ConfigInvalid) as caught:
        samples(tmp_path, value)
    assert caught.value.message == message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"failed to open file for read .*/warmup/raw: No such file or directory"):
        samples(tmp_path, 'data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "raw"')
