"""Lines that native libraries write to stdout and stderr, as events of the log.

ONNX Runtime's lines, for example, look like this; terminals get them in colours:

    2026-11-23 09:02:28.207427347 [I:onnxruntime:simple, inference_session.cc:777 TraceSessionOptions] Session Options
"""

from __future__ import annotations

import contextlib
import logging
import re
from datetime import datetime
from pathlib import PurePath

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Its time is local, to the nanosecond; the log has microseconds.
_KNOWN = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})\d* \[(?P<level>[VIWEF]):(?P<library>\w+):(?P<id>[^,]*), "
    r"(?P<file>[^\]:]+):(?P<line>\d+)[^\]]*\] (?P<text>.*)",
    re.DOTALL,
)
_LEVELS = {"V": logging.DEBUG, "I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.ERROR}
_OTHER = "trident.native"


def log_native_line(line: str, pid: int, level_of_others: int = logging.WARNING) -> None:
    """Log a line that process `pid` wrote: at `level_of_others`, INFO for stdout, if it is in no known form."""
    text = _COLOURS.sub("", line).rstrip()
    if not text:
        return
    found = _KNOWN.match(text)
    logger = logging.getLogger(f"trident.{found['library']}" if found else _OTHER)
    level = _LEVELS[found["level"]] if found else level_of_others
    if not logger.isEnabledFor(level):
        return
    if found is None:
        record = logger.makeRecord(
            logger.name, level, "stderr" if level > logging.INFO else "stdout", 0, "%s", (text,), None
        )
    else:
        place, number = PurePath(found["file"]).name, int(found["line"])
        extra = {"session": found["id"]} if found["id"] else None
        record = logger.makeRecord(logger.name, level, place, number, "%s", (found["text"],), None, extra=extra)
        with contextlib.suppress(ValueError):
            record.created = datetime.fromisoformat(found["time"]).timestamp()
    record.process = pid
    logger.handle(record)
