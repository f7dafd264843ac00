"""The media type of a v2 body with binary tensors: the length of its JSON stands in the Content-Type.

Source: spec/sagemaker.md (b) B5.
"""

from __future__ import annotations

from core.errors import InvalidRequest
from core.http.payloads.media_type import parse_media_type
from core.http.reply import JSON

BINARY = "application/vnd.sagemaker-triton.binary+json"
SIZE = "json-header-size"
BINARY_PREFIX = f"{BINARY};{SIZE}="


def json_size_text(content_type: str) -> str | None:
    """What stands for the length, whatever it is; None for another type. Never raises.

    "" where the type is somewhere in the header but not as it must be: no length, so that the request is refused.
    """
    if content_type.startswith(BINARY_PREFIX):
        return content_type[len(BINARY_PREFIX) :]
    if content_type == JSON or BINARY not in content_type.lower():
        return None
    try:
        media_type = parse_media_type(content_type)
    except InvalidRequest:
        return ""
    return media_type.parameters.get(SIZE, "") if media_type.essence == BINARY else ""


def binary_type(json_size: int) -> str:
    return f"{BINARY_PREFIX}{json_size}"
