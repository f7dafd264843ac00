from __future__ import annotations

from trident.app.worker.body_input import BodyInput


def test_the_input_reads_as_a_file() -> None:
    source = BodyInput(memoryview(b"one\ntwo\nthree"))
    assert source.read(2) == b"on"
    assert source.readline() == b"e\n"
    assert source.read(100) == b"two\nthree"
    assert source.read() == b""
    assert list(BodyInput(memoryview(b"a\nb"))) == [b"a\n", b"b"]
    assert BodyInput(memoryview(b"abc")).read() == b"abc"
