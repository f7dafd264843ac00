"""Logger: level, text, file and line."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from trident_stub.logger import Logger

from tests.unit.core.backends.python.stub.trident_stub.memory_server import MemoryServer


def test_lines_have_the_place_that_wrote_them(memory_server: MemoryServer) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    line = frame.f_lineno
    Logger.log("a")
    Logger.log("b", Logger.VERBOSE)
    Logger.log(message="c", level=Logger.LogLevel.ERROR)
    Logger.log_info("d")
    Logger.log_warn("e")
    Logger.log_error("f")
    Logger.log_verbose("g")
    assert memory_server.lines == [
        (level, text, "test_logger.py", line + 1 + index)
        for index, (level, text) in enumerate(zip((0, 3, 2, 0, 1, 2, 3), "abcdefg", strict=True))
    ]


@pytest.mark.parametrize("arguments", [(), (None,), (1,), ("a", None), ("a", 1), ("a", "INFO")])
def test_wrong_types(memory_server: MemoryServer, arguments: Any) -> None:
    with pytest.raises(TypeError):
        Logger.log(*arguments)
    assert memory_server.lines == []
