"""The stream between a front end and the engine, cut into frames."""

from __future__ import annotations

import pytest

from trident.core.interprocess.frames import ALIGNMENT, HEADER, LARGEST, BadFrame, FrameReader, frame
from trident.core.remote.wire import CALL, RELEASE, REQUEST, RESPONSE, RESULT, STATE, TO_ENGINE, TO_FRONT_END

ALL = TO_ENGINE | TO_FRONT_END
STREAM = [(REQUEST, 1, b"x" * 40), (RELEASE, 2**64 - 1, b""), (CALL, 0, b"a"), (RESULT, 7, bytes(range(256)))]


def written() -> bytes:
    return b"".join(frame(kind, number, (content,)) for kind, number, content in STREAM)


def test_a_frame_is_a_multiple_of_the_alignment_and_ends_in_blanks() -> None:
    for size in range(40):
        whole = frame(CALL, 3, (b"c" * size,))
        assert len(whole) % ALIGNMENT == 0
        assert whole[HEADER.size :].rstrip(b" ") == b"c" * size
        assert HEADER.unpack_from(whole) == (len(whole) - HEADER.size, CALL, 0, 0, 3)


@pytest.mark.parametrize("step", [1, 2, 15, 16, 17, 33, 100, 10_000])
def test_frames_are_found_in_any_pieces(step: int) -> None:
    reader = FrameReader(ALL)
    stream = written()
    found = [each for at in range(0, len(stream), step) for each in reader.feed(stream[at : at + step])]
    assert [(kind, number) for kind, _, _, number, _ in found] == [(kind, number) for kind, number, _ in STREAM]
    for (_, _, _, _, content), (_, _, sent) in zip(found, STREAM, strict=True):
        assert content[: len(sent)] == sent


def test_frames_are_found_wherever_the_stream_is_cut() -> None:
    stream = written()
    for at in range(len(stream) + 1):
        reader = FrameReader(ALL)
        assert len(reader.feed(stream[:at]) + reader.feed(stream[at:])) == len(STREAM), at


def test_frames_stay_valid_when_more_arrive() -> None:
    reader = FrameReader(ALL)
    ((*_, first),) = reader.feed(frame(CALL, 1, (b"first",)))
    reader.feed(frame(CALL, 2, (b"other",)))
    assert bytes(first).rstrip() == b"first"


def test_flags_and_counts_are_returned() -> None:
    assert FrameReader(ALL).feed(HEADER.pack(0, RESPONSE, 3, 2, 5))[0][:4] == (RESPONSE, 3, 2, 5)


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(0, 0, 0, 0, 1),
        HEADER.pack(0, 15, 0, 0, 1),
        HEADER.pack(0, 255, 0, 0, 1),
        HEADER.pack(8, CALL, 0, 0, 1),
        HEADER.pack(LARGEST + 15, CALL, 0, 0, 1),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_malformed_frames_are_refused(header: bytes) -> None:
    with pytest.raises(BadFrame):
        FrameReader(ALL).feed(header)


def test_each_end_accepts_what_the_other_sends() -> None:
    FrameReader(TO_ENGINE).feed(frame(REQUEST, 1))
    FrameReader(TO_FRONT_END).feed(frame(STATE, 1))
    with pytest.raises(BadFrame):
        FrameReader(TO_ENGINE).feed(frame(STATE, 1))
    with pytest.raises(BadFrame):
        FrameReader(TO_FRONT_END).feed(frame(REQUEST, 1))


def test_a_large_size_takes_no_memory_before_its_bytes_arrive() -> None:
    reader = FrameReader(ALL)
    assert reader.feed(HEADER.pack(LARGEST, CALL, 0, 0, 1) + b"begin") == []
    assert reader.feed(b"more") == []
