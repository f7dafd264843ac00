"""The settings of a client."""

from __future__ import annotations

from app.worker.http2 import frames
from app.worker.http2.error_codes import ErrorCode
from app.worker.http2.faults import ConnectionFault


def read_settings(content: bytes) -> dict[int, int]:
    """The latest value of each setting, of unknown ones too. Raises ConnectionFault. Source: RFC 9113 section 6.5.2."""
    if len(content) % 6:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS must have six bytes for each setting")
    values: dict[int, int] = {}
    for key, value in frames.read_settings(content):
        if key == frames.INITIAL_WINDOW_SIZE and value > frames.LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE exceeds 2^31-1")
        if key == frames.MAX_FRAME_SIZE and not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is not within 2^14 and 2^24-1")
        if key == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
        values[key] = value
    return values
