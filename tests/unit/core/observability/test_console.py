from __future__ import annotations

import io

import pytest

from trident.core.observability.log import print_line


class Writes(io.RawIOBase):
    """A file that records the bytes of each system call."""

    def __init__(self) -> None:
        self.each: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.each.append(bytes(data))
        return len(data)


# As Python opens the standard streams: with PYTHONUNBUFFERED without a buffer, and on a terminal by lines.
@pytest.mark.parametrize("how", [{"write_through": True}, {"line_buffering": True}, {}])
def test_a_line_and_its_end_are_one_write(how: dict[str, bool]) -> None:
    file = Writes()
    buffer = file if how.get("write_through") else io.BufferedWriter(file)
    stream = io.TextIOWrapper(buffer, encoding="utf-8", **how)  # type: ignore[arg-type]
    print_line("one\ntwo ä", stream)
    assert file.each == ["one\ntwo ä\n".encode()]


def test_print_writes_the_line_end_separately() -> None:
    """The reason for `print_line`."""
    file = Writes()
    print("line", file=io.TextIOWrapper(file, write_through=True), flush=True)  # type: ignore[arg-type]
    assert file.each == [b"line", b"\n"]
