"""The end of a connection by its client."""

from __future__ import annotations


class ClientGone(Exception):
    """The connection ended before the whole request was received or the whole response was sent."""
