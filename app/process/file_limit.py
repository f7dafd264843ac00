"""The limit of open files of the process, which bounds the number of connections."""

from __future__ import annotations

import resource

_RESERVED_FILES = 512
_MIN_PLACES = 64
_MAX_PLACES = 100_000


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one. Returns the number of connections that may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return connection_places(hard)


def connection_places(limit: int) -> int:
    """The number of connections that may be open with this limit of open files."""
    if limit == resource.RLIM_INFINITY:
        return _MAX_PLACES
    return max(_MIN_PLACES, min(_MAX_PLACES, limit - _RESERVED_FILES))
