"""Options of parts of the engine. The settings are made of them, so this module imports nothing of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class WindowLimits(NamedTuple):
    """How many responses, or bytes, a model may send to a request before the client has taken them."""

    responses: int = 64
    nbytes: int = 8 << 20


DEFAULT_WINDOW = WindowLimits()


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """A value of --rate-limit-resource. `device` is None for every device; a global resource ignores it."""

    name: str
    count: int
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """The response cache in Redis, named and measured as Triton's (docs/spec/schedulers.md section 3.7).

    Timeouts are in milliseconds; 0 waits for ever for a connection or a reply, on the cache's own threads.

    `pool_size` connections are kept. A request waits for its look-up at most `lookup_timeout`, whatever the others are.
    `cert`, `key` and `cacert` are files in PEM, `cacert_dir` is a folder of them; any of them, or `tls_enabled`,
    switches TLS on. Then the server's certificate must be one for `host`.
    """

    host: str
    port: int = 6379
    user: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    connect_timeout: int = 1000
    socket_timeout: int = 1000
    pool_size: int = 1
    lookup_timeout: int = 50
    tls_enabled: bool = False
    cert: str = ""
    key: str = ""
    cacert: str = ""
    cacert_dir: str = ""

    @property
    def has_tls(self) -> bool:
        return self.tls_enabled or any((self.cert, self.key, self.cacert, self.cacert_dir))

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return f"{self.host}:{self.port}"
