from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.core.config.sequence.sequence_configs import normalized
from trident.core.config.resolve import resolve_sequence_spec
from trident.core.config.warmup import initial_states
from trident.core.errors import ConfigInvalid
from trident.core.inference.tensors import Array


def read(folder: Path, initial: str = "", data_type: str = "TYPE_INT32", dims: str = "2, -1") -> Array:
    made = f'initial_state {{ name: "n" data_type: {data_type} {initial} }}' if initial else ""
    config = normalized(f'state {{ input_name: "I" output_name: "O" data_type: {data_type} dims: [ {dims} ] {made} }}')
    spec = resolve_sequence_spec(config)
    assert spec is not None
    return initial_states(config, spec.states, folder)["I"]


def put(folder: Path, content: bytes) -> None:
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "data").write_bytes(content)


def test_without_data_a_state_is_zeros_of_the_smallest_shape(tmp_path: Path) -> None:
    assert read(tmp_path).tolist() == [[0], [0]]
    assert read(tmp_path, data_type="TYPE_STRING").tolist() == [[b""], [b""]]
    assert read(tmp_path, "dims: [ 2, 2 ] zero_data: true").tolist() == [[0, 0], [0, 0]]


def test_data_comes_from_a_file(tmp_path: Path) -> None:
    put(tmp_path, np.arange(5, dtype=np.int32).tobytes())
    assert read(tmp_path, 'dims: [ 2, 2 ] data_file: "data"').tolist() == [[0, 1], [2, 3]]


def test_text_comes_from_a_file(tmp_path: Path) -> None:
    put(tmp_path, b"\x02\0\0\0ab\0\0\0\0")
    assert read(tmp_path, 'dims: [ 2, 1 ] data_file: "data"', "TYPE_STRING").tolist() == [[b"ab"], [b""]]


@pytest.mark.parametrize(
    ("initial", "reason"),
    [
        ('dims: [ 2, 1 ] data_file: "none"', "failed to open file for read "),
        ('dims: [ 2, 1 ] data_file: "../../data"', "is outside model directory"),
        (
            'dims: [ 2, 9 ] data_file: "data"',
            "initial_state setting expects 72 bytes, but the data provided from data ",
        ),
        ("dims: [ 2, 4611686018427387904 ] zero_data: true", "the initial state of 'I' cannot be made: "),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, initial: str, reason: str) -> None:
    put(tmp_path, b"1234")
    with pytest.raises(ConfigInvalid) as raised:
        read(tmp_path, initial)
    assert reason in raised.value.message
