"""The part of a frame that carries tensors."""

from __future__ import annotations

from typing import Any

import pytest

from trident.core.interprocess.frames import ALIGNMENT, HEADER, BadFrame, FrameReader, frame
from trident.core.remote.wire import REQUEST, TO_ENGINE, BlockReader, block_head

META = b'["m",1]'


def read(block: bytes, parse: Any = list) -> tuple[Any, str, tuple[int, ...], int, memoryview]:
    """What a reader returns for a whole frame, and the frame's content."""
    ((_, _, shared, _, content),) = FrameReader(TO_ENGINE, "peer").feed(block)
    return (*BlockReader(parse).read(content, shared), content)


TEXTS = (b"", b"id", "äö\udcff".encode("utf-8", "surrogatepass"), b"x" * 1000)


# The head's length depends on offsets and text together; the tensors follow it.
@pytest.mark.parametrize(
    ("offsets", "text", "sizes"),
    [
        *((offsets, text, (16, 17, 5)) for offsets in ((), (0,), (4096, 2**64 - 1)) for text in TEXTS),
        *(((0,), b"id", sizes) for sizes in ((), (0,), (1,), (40_000,))),
    ],
)
def test_a_block_is_read_as_it_was_written(offsets: tuple[int, ...], text: bytes, sizes: tuple[int, ...]) -> None:
    tensors = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    block = frame(REQUEST, 9, (block_head(META, text, offsets), *tensors), flags=1, shared=len(offsets))
    assert HEADER.unpack_from(block) == (len(block) - HEADER.size, REQUEST, 1, len(offsets), 9)
    assert len(block) % ALIGNMENT == 0
    meta, found_text, found_offsets, at, content = read(block)
    assert (meta, found_text, found_offsets) == (["m", 1], text.decode("utf-8", "surrogatepass"), offsets)
    assert at % ALIGNMENT == 0
    together = b"".join(tensors)
    assert content[at:] == together + b" " * (-len(together) % ALIGNMENT)


@pytest.mark.parametrize(
    ("content", "shared"),
    [
        (b"", 0),
        (b"\0" * 7, 0),
        (b"\xff\xff\xff\xff\0\0\0\0" + b" " * 8, 0),
        (b"\0\0\0\0\xff\xff\xff\xff" + b" " * 8, 0),
        (b"\2\0\0\0\0\0\0\0[]" + b" " * 6, 2),
        (b"\2\0\0\0\0\0\0\0[]" + b" " * 6, 65535),
        (b"\2\0\0\0\0\0\0\0[}" + b" " * 6, 0),
        (b"\2\0\0\0\2\0\0\0[]\xff\xff" + b" " * 4, 0),
        (b"\0\0\0\0\0\0\0\0" + b" " * 8, 0),
    ],
)
def test_reading_refuses_malformed_blocks(content: bytes, shared: int) -> None:
    with pytest.raises(BadFrame):
        BlockReader(list).read(memoryview(content), shared)


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError])
def test_reading_refuses_documents_that_parse_refuses(error: type[Exception]) -> None:
    def parse(meta: Any) -> Any:
        raise error("no")

    with pytest.raises(BadFrame):
        read(frame(REQUEST, 1, (block_head(META),)), parse)


def test_equal_documents_are_parsed_once() -> None:
    parsed: list[Any] = []
    reader = BlockReader(lambda meta: parsed.append(meta) or meta)  # type: ignore[func-returns-value]
    for text in (b"a", b"b", b"c"):
        content = memoryview(frame(REQUEST, 1, (block_head(META, text),)))[HEADER.size :]
        assert reader.read(content, 0)[:2] == (["m", 1], text.decode())
    assert parsed == [["m", 1]]


def test_the_memory_of_known_documents_is_bounded() -> None:
    """Clients choose names and shapes, so their number has no limit."""
    reader = BlockReader(list)
    known = reader._known
    for number in range(5000):
        reader.read(memoryview(block_head(b"[%d]" % number)), 0)
        assert len(known) <= 1024
    known.clear()
    reader.read(memoryview(block_head(b'["%s"]' % (b"x" * 5000))), 0)
    assert known == {}
