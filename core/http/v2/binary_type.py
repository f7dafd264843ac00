"""The media type that marks a v2 body with binary tensors on a platform, with the length of the JSON in a parameter.

Source: docs/spec/sagemaker.md section B5, docs/spec/vertex.md section B4.
"""

from __future__ import annotations

from functools import lru_cache

from core.errors import InvalidRequest
from core.http.payloads.media_type import parse_media_type

SIZE = "json-header-size"


class BinaryType:
    """`essence` is the media type without its parameter, `prefix` the text before the number."""

    def __init__(self, essence: str) -> None:
        self.essence = essence
        self.prefix = f"{essence};{SIZE}="
        # Clients repeat a few types.
        self.size_text = lru_cache(maxsize=256)(self._size_text)

    def _size_text(self, content_type: str) -> str | None:
        """The text of the length, valid or not; None for another type. Never raises.

        "" if the header contains the type but is malformed: the request is then refused for a missing length.
        """
        if content_type.startswith(self.prefix):
            return content_type[len(self.prefix) :]
        if self.essence not in content_type.lower():
            return None
        try:
            media_type = parse_media_type(content_type)
        except InvalidRequest:
            return ""
        return media_type.parameters.get(SIZE, "") if media_type.essence == self.essence else ""

    def missing_size(self) -> InvalidRequest:
        """The error for a request of this type without a length."""
        return InvalidRequest(f"Content-Type must be '{self.prefix}N', N being the length of the JSON in bytes")

    def of(self, json_size: int) -> str:
        return f"{self.prefix}{json_size}"
