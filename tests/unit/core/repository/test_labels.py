"""Label files: one label per line, inside the model directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from trident.core.config.schema import ModelConfig
from trident.core.errors import ErrorCode, ModelLoadFailed, Unsupported
from trident.core.repository.repository import ModelDirectory, read_labels


def labels(directory: Path, file_name: str) -> dict[str, tuple[str, ...]]:
    text = f'output {{ name: "OUT" label_filename: "{file_name}" }} output {{ name: "PLAIN" }}'
    return read_labels(ModelDirectory("m", directory), text_format.Parse(text, ModelConfig()))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("cat\ndog\n", ("cat", "dog")),
        ("cat\ndog", ("cat", "dog")),
        ("cat\r\n\r\nred fox \n", ("cat", "", "red fox ")),
        ("tiger\u2028cat\x0b", ("tiger\u2028cat\x0b",)),
        ("", ()),
    ],
)
def test_line_number_is_the_class_index(tmp_path: Path, content: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_bytes(content.encode())
    assert labels(tmp_path, "labels.txt") == {"OUT": expected}


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"caf\xe9\nok\n")
    assert labels(tmp_path, "labels.txt") == {"OUT": ("caf\ufffd", "ok")}


def test_file_outside_the_model_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported) as caught:
        labels(tmp_path, "../labels.txt")
    assert caught.value.message == (
        "label file path '../labels.txt' for output 'OUT' in model 'm' is outside model directory"
    )
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_missing_label_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"^failed to open text file for read .*labels.txt: No such file"):
        labels(tmp_path, "labels.txt")
