"""One connection to a Redis server, through redis-py; the only module that imports it.

Source: docs/spec/schedulers.md section 3.7, "Redis".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from trident.core.response_cache.redis_options import RedisOptions

_PER_S = 1000


class Unreachable(Exception):
    """Redis did not answer; the argument is the reason, without any secret."""


class RedisConnection:
    """Made and used on one thread, which it may block for as long as its timeouts allow."""

    def __init__(self, options: RedisOptions) -> None:
        """Connects at the first command."""
        self._client = Redis(
            host=options.host,
            port=options.port,
            username=options.user or None,
            password=options.password or None,
            db=options.db,
            socket_connect_timeout=options.connect_timeout / _PER_S or None,
            socket_timeout=options.socket_timeout / _PER_S or None,
            protocol=2,
            retry=Retry(NoBackoff(), 0),  # the cache's own threads decide when to try again
            ssl=options.has_tls,
            ssl_certfile=options.cert or None,
            ssl_keyfile=options.key or None,
            ssl_ca_certs=options.cacert or None,
            ssl_ca_path=options.cacert_dir or None,
        )

    def check(self) -> None:
        """Connect, unless it is connected, and have the server answer. Raises Unreachable."""
        try:
            self._client.ping()
        except (RedisError, OSError) as error:
            raise Unreachable(_reason(error)) from None

    def exchange(
        self, names: Sequence[bytes], largest: int, values: Sequence[tuple[bytes, bytes]]
    ) -> tuple[list[bytes | Exception], list[Exception]]:
        """In one round trip: read at most `largest` bytes of the values of `names`, and set `values`.

        Returns what was read, empty for a name without a value, or the error of it; and the errors of those to be set.
        Raises Unreachable.
        """
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.getrange(name, 0, largest - 1)
        for name, value in values:
            pipeline.set(name, value)
        try:
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise Unreachable(_reason(error)) from None
        read, written = replies[: len(names)], replies[len(names) :]
        return read, [reply for reply in written if isinstance(reply, Exception)]

    def close(self) -> None:
        self._client.close()


def _reason(error: Exception) -> str:
    """Redis never repeats a password in its errors, and redis-py does not either."""
    return str(error).rstrip(".") or type(error).__name__
