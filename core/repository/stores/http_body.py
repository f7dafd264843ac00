"""The body of an HTTP answer, in pieces as they arrive.

Over TLS a piece is at most one record, 16 KB: 60,000 of them for a GB. Passing them through urllib3's own reading takes
two thirds of the time of receiving and decrypting them, so it is left out (128 MB over TLS: 0.15 s of CPU time with it,
0.11 s without; bare sockets 0.09 s).
"""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

from core.repository.stores.object_store import TransientError

_PIECE_BYTES = 256 << 10


def body_pieces(response: Any, length: int, target: str) -> Iterator[bytes]:
    """`length` bytes of the body of `response`, one of urllib3, in pieces of up to 256 KiB, exactly as they are stored.

    Raises TransientError, after the pieces that arrived, for a body that ends or breaks off early, or goes on; `target`
    names it. A body that was read to its end leaves its connection for the next request.
    """
    if not length:  # the answer may be the whole object
        return
    source = response._fp
    left = length
    try:
        while left:
            # `read1` returns what has arrived, so a connection that breaks loses nothing of what it delivered before.
            piece: bytes = source.read1(min(left, _PIECE_BYTES))
            if not piece:
                raise TransientError(f"{target} ended {left} bytes too early")
            left -= len(piece)
            yield piece
        if source.read1(1):
            raise TransientError(f"{target} has more than the {length} bytes that were asked for")
    except (OSError, HTTPException) as error:
        raise TransientError(f"{target} broke off {left} bytes before its end: {type(error).__name__}") from None
    source.close()
    response.release_conn()
