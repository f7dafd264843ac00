"""The records of a batch transform job: splitting, paths, filters and joins."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from trident.core.errors import ConfigInvalid
from trident.tools.emulators.sagemaker.transform import JsonPath, Processing, TransformOptions, split

CSV, JSON, LINES = "text/csv", "application/json", "application/jsonlines"


def recordio(*records: bytes) -> bytes:
    return b"".join(struct.pack("<II", 0xCED7230A, len(each)) + each + bytes(-len(each) % 4) for each in records)


def tfrecord(*records: bytes) -> bytes:
    return b"".join(struct.pack("<QI", len(each), 1) + each + bytes(4) for each in records)


@pytest.mark.parametrize(
    ("content", "split_type", "records"),
    [
        (b"1,2\r\n3,4\n\n5,6", "Line", [b"1,2", b"3,4", b"5,6"]),
        (recordio(b"abcde", b"", b"x" * 8), "RecordIO", [b"abcde", b"", b"x" * 8]),
        (tfrecord(b"abcde", b"f"), "TFRecord", [b"abcde", b"f"]),
        (b"1\n2", "None", [b"1\n2"]),
    ],
)
def test_object_is_split_into_records_without_their_frames(
    content: bytes, split_type: str, records: list[bytes]
) -> None:
    assert split(content, split_type) == records


@pytest.mark.parametrize(("frames", "split_type"), [(recordio, "RecordIO"), (tfrecord, "TFRecord")])
def test_records_of_one_request_keep_their_frames(frames: Callable[..., bytes], split_type: str) -> None:
    whole = [frames(each) for each in (b"abcde", b"", b"x" * 8)]
    assert split(b"".join(whole), split_type, framed=True) == whole


@pytest.mark.parametrize(
    ("content", "split_type"),
    [(b"no frames", "RecordIO"), (recordio(b"abc")[:-2], "RecordIO"), (tfrecord(b"abc")[:-1], "TFRecord")],
)
def test_broken_frames_are_refused(content: bytes, split_type: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"not in the format {split_type}"):
        split(content, split_type)


@pytest.mark.parametrize(
    ("path", "value", "selected"),
    [
        ("$", {"a": 1}, {"a": 1}),
        ("", [1], [1]),
        ("$.a.b", {"a": {"b": 2}}, 2),
        ("$['a b']", {"a b": 3}, 3),
        ("$['id','SageMakerOutput']", {"id": 1, "x": 2, "SageMakerOutput": 3}, {"id": 1, "SageMakerOutput": 3}),
        ("$[1:]", [0, 1, 2], [1, 2]),
        ("$[0,2:]", [0, 1, 2, 3], [0, 2, 3]),
        ("$[-1]", [0, 1, 2], 2),
        ("$.rows[0]", {"rows": [[5]]}, [5]),
    ],
)
def test_path_selects_as_the_platform(path: str, value: Any, selected: Any) -> None:
    assert JsonPath(path).select(value) == selected


@pytest.mark.parametrize("path", ["a", "$..a", "$.*", "$[?(@.a)]", "$[1:2:3]", "$[]", "$[a]", "$.a["])
def test_paths_that_the_platform_does_not_know_are_refused(path: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"not a path|not an index"):
        JsonPath(path)


@pytest.mark.parametrize(("path", "value"), [("$.a", {}), ("$.a", [1]), ("$[3]", [1]), ("$[0]", {"0": 1})])
def test_path_missing_in_a_record_is_refused(path: str, value: Any) -> None:
    with pytest.raises(ConfigInvalid, match="nothing at"):
        JsonPath(path).select(value)


@pytest.mark.parametrize(
    ("given", "content_type", "record", "sent", "answer", "kept"),
    [
        ({"InputFilter": "$[1:]"}, CSV, b"id,1,2", b"1,2", b"9", b"9"),
        ({"JoinSource": "Input"}, CSV, b'"a,b",1', b'"a,b",1', b"9", b'"a,b",1,9'),
        ({"JoinSource": "Input", "OutputFilter": "$[0,-1]"}, CSV, b"id,1", b"id,1", b"9", b"id,9"),
        ({"JoinSource": "Input"}, LINES, b'{"x":1}', b'{"x":1}', b"[2]", b'{"x":1,"SageMakerOutput":[2]}'),
        (
            {"JoinSource": "Input"},
            LINES,
            b'{"id":18446744073709551616,"x":-9223372036854775809}',
            b'{"id":18446744073709551616,"x":-9223372036854775809}',
            b"123456789012345678901234567890",
            b'{"id":18446744073709551616,"x":-9223372036854775809,"SageMakerOutput":123456789012345678901234567890}',
        ),
        ({"JoinSource": "Input"}, JSON, b"[1]", b"[1]", b"2", b'{"SageMakerInput":[1],"SageMakerOutput":2}'),
        (
            {"InputFilter": "$.x", "JoinSource": "Input", "OutputFilter": "$['id','SageMakerOutput']"},
            LINES,
            b'{"id":7,"x":[1]}',
            b"[1]",
            b"[2]",
            b'{"id":7,"SageMakerOutput":[2]}',
        ),
        ({}, "image/png", b"\x00", b"\x00", b"\x01", b"\x01"),
    ],
)
def test_record_is_filtered_joined_and_filtered_again(
    given: dict[str, Any], content_type: str, record: bytes, sent: bytes, answer: bytes, kept: bytes
) -> None:
    processing = Processing(given, content_type, content_type)
    assert processing.sent(record) == sent
    assert processing.kept(record, answer) == kept


@pytest.mark.parametrize("record", [b"NaN", b"1e400", b'"\\ud800"', b"\xff", b"[" * 5000 + b"]" * 5000, b"1" * 5000])
def test_record_that_is_not_json_is_refused(record: bytes) -> None:
    with pytest.raises(ConfigInvalid, match="a record is not application/json"):
        Processing({"JoinSource": "Input"}, JSON, JSON).kept(record, b"1")


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ({"BatchStrategy": "MultiRecord"}, "records need a SplitType"),
        ({"MaxPayloadInMB": 20, "MaxConcurrentTransforms": 6}, "MaxConcurrentTransforms is 120"),
        (
            {
                "TransformInput": {"ContentType": CSV, "SplitType": "Line"},
                "TransformOutput": {"Accept": CSV},
                "DataProcessing": {"JoinSource": "Input"},
            },
            "needs AssembleWith Line",
        ),
        (
            {
                "TransformInput": {"ContentType": CSV},
                "TransformOutput": {"Accept": JSON},
                "DataProcessing": {"InputFilter": "$.a"},
            },
            "cannot be filtered or joined",
        ),
    ],
)
def test_jobs_that_the_platform_refuses_are_refused(job: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        TransformOptions(input="in", output="out", job=job)
    assert text in f"{raised.value.message} {raised.value.hint}"
