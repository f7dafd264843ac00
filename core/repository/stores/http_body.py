"""The body of an HTTP answer, in pieces as they arrive."""

from __future__ import annotations

from collections.abc import Iterator

from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse

from trident.core.repository.stores.object_store import TransientError

_PIECE_BYTES = 256 << 10


def body_pieces(response: HTTPResponse, length: int, target: str) -> Iterator[bytes]:
    """Yield `length` bytes of the body of `response` in pieces of up to 256 KiB, exactly as they are stored.

    Raises TransientError, after the pieces that arrived, for a body that ends or breaks off early, or goes on; `target`
    names it. A body that was read to its end leaves its connection for the next request.
    """
    if not length:  # the answer may be the whole object
        return
    left = length
    try:
        while left:
            # `read1` returns what has arrived, so a connection that breaks loses nothing of what it delivered before.
            piece = response.read1(min(left, _PIECE_BYTES), decode_content=False)
            if not piece:
                raise TransientError(f"{target} ended {left} bytes too early")
            left -= len(piece)
            yield piece
        if response.read1(1, decode_content=False):
            raise TransientError(f"{target} has more than the {length} bytes that were asked for")
    except (OSError, HTTPError) as error:
        raise TransientError(f"{target} broke off {left} bytes before its end: {type(error).__name__}") from None
