from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from trident.app.emulators.vertex.batch import InputRecord, InstancesFormat, format_of, read_records
from trident.core.errors import ConfigInvalid


def read(folder: Path, name: str, content: str | bytes) -> list[InputRecord]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_records(path, format_of(path)))


def values(records: list[InputRecord]) -> list[Any]:
    assert not any(record.fault for record in records)
    return [record.value for record in records]


def test_the_suffix_decides_the_format() -> None:
    assert format_of(Path("a.jsonl")) is InstancesFormat.JSONL
    assert format_of(Path("a.CSV")) is InstancesFormat.CSV
    assert format_of(Path("a.txt")) is InstancesFormat.FILE_LIST


def test_a_line_of_json_is_an_instance(tmp_path: Path) -> None:
    found = read(tmp_path, "a.jsonl", '[1, 2]\n\n{"a": "b"}\r\n3')
    assert values(found) == [[1, 2], {"a": "b"}, 3]


def test_a_malformed_line_is_kept_with_its_fault(tmp_path: Path) -> None:
    good, bad, last = read(tmp_path, "a.jsonl", "1\n{\n2\n")
    assert (good.value, last.value) == (1, 2)
    assert (bad.value, bad.fault.startswith("the line is not JSON")) == ("{", True)


def test_a_row_has_the_headers_names_with_quoted_text_and_plain_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, "a.csv", 'x,"y z",w\n1,"1",-2.5e3\n\n"a ""b""\nc",0,"d,e"\n')
    assert values(found) == [
        {"x": 1.0, "y z": "1", "w": -2500.0},
        {"x": 'a "b"\nc', "y z": 0.0, "w": "d,e"},
    ]
    assert type(found[0].value["x"]) is float


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("1,abc", "line 3: could not convert"),
        ("1,nan", "line 3 has a number that JSON does not have"),
        ("1,1e999", "line 3 has a number that JSON does not have"),
        ("1", "line 3 has 1 fields, and there are 2 columns"),
        ("1,2,3", "line 3 has 3 fields, and there are 2 columns"),
    ],
)
def test_a_malformed_row_does_not_stop_the_others(row: str, text: str, tmp_path: Path) -> None:
    first, bad, last = read(tmp_path, "a.csv", f"a,b\n1,2\n{row}\n3,4\n")
    assert (first.value, last.value) == ({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0})
    assert bad.fault.startswith(text)


@pytest.mark.parametrize(("content", "text"), [("", "is empty"), ("a,a\n1,2\n", "two columns of one name")])
def test_a_table_without_valid_names_is_refused(content: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        read(tmp_path, "a.csv", content)


def test_a_file_in_a_list_becomes_its_content(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one").write_bytes(b"\x00\xff")
    found = read(tmp_path, "list.txt", f"images/one\n{tmp_path}/images/one\n")
    assert values(found) == [{"b64": base64.b64encode(b"\x00\xff").decode()}] * 2


def test_an_unreadable_file_of_a_list_is_a_fault(tmp_path: Path) -> None:
    found = read(tmp_path, "list.txt", b"nothing\ngs://b/o\n.\n\xff\xfe\n/dev/zero\na\x00b\n")
    assert [record.fault for record in found[:3]] == [
        "there is no such file",
        "gs://b/o is not on this machine; the emulator reads files",
        "there is no such file",
    ]
    assert all(record.fault and isinstance(record.value, str) for record in found)


def test_a_missing_input_is_refused(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv", "a"):
        with pytest.raises(ConfigInvalid, match="cannot be read"):
            list(read_records(tmp_path / name, format_of(Path(name))))
