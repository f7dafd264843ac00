"""The options of the response cache in Redis, named and measured as those of Triton's Redis cache.

Source: docs/spec/schedulers.md section 3.7, "Redis".
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """Timeouts are in milliseconds; 0 waits for ever for a connection or a reply, on the cache's own threads.

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
