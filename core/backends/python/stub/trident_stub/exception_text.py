"""The text of an exception, as Triton's stub writes it: the type, its text, and where it was, deepest first.

    TypeError: unsupported operand

    At:
      /models/m/1/model.py(12): scale
      /models/m/1/model.py(31): execute

Source: docs/spec/python-backend.md section 4.2.
"""

from __future__ import annotations

import os
import traceback

_LIBRARY = os.path.dirname(__file__)
_IMPORTLIB = os.path.join("importlib", "__init__.py")
# What may stand between the library and the model.
_BETWEEN = (
    _LIBRARY,
    os.path.join(os.path.dirname(os.__file__), "asyncio"),
    os.path.join(os.path.dirname(os.__file__), "concurrent", "futures"),
)


def exception_text(error: BaseException) -> str:
    """The text of an exception that the model raised, without the frames above the model and those of the library."""
    try:
        message = str(error)
    except Exception as failure:
        message = f"<{type(failure).__name__} when its text was made>"
    text = f"{type(error).__name__}: {message}"
    frames = list(traceback.extract_tb(error.__traceback__))
    while frames and _is_above(frames[0].filename):
        del frames[0]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        # Its frames are those of the import; it knows itself where the text is that cannot be read.
        source = (error.text or "").strip()
        return f"{text}\n\nAt:\n  {error.filename}({error.lineno}): column {error.offset or 0} of {source!r}\n"
    lines = [
        f"  {frame.filename}({frame.lineno}): {frame.name}\n"
        for frame in reversed(frames)
        if os.path.dirname(frame.filename) != _LIBRARY
    ]
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text


def _is_above(file: str) -> bool:
    return os.path.dirname(file) in _BETWEEN or file.startswith("<frozen importlib") or file.endswith(_IMPORTLIB)
