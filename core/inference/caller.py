"""Who sends requests one after the other."""

from __future__ import annotations


class Caller:
    """One that sends its next request when it has the answer to the last: a connection of HTTP/1.

    `is_open` until the connection has ended, from then on it sends nothing. Any thread may read it.
    """

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        self.is_open = True
