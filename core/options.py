"""Options of parts of the engine. The settings are made of them, so this module imports nothing of the engine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class WindowLimits(NamedTuple):
    """Responses, or bytes, that a model may send to a request before the client has taken them."""

    responses: int = 64
    nbytes: int = 8 << 20


DEFAULT_WINDOW = WindowLimits()

MAX_UNFINISHED = 512 << 20
"""Bytes of all the bodies, or messages of gRPC, that are being received."""


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

    `pool_size` connections stay open. A request waits for its look-up at most `lookup_timeout`, whatever the rest is.
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
        return f"{self.host}:{self.port}"


FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
REQUEST = "trident_inference_request_duration_seconds"
QUEUE = "trident_inference_queue_duration_seconds"
COMPUTE = "trident_inference_compute_duration_seconds"

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DEFAULT_BUCKETS: dict[str, tuple[float, ...]] = {
    FIRST_RESPONSE: (100.0, 500.0, 2000.0, 5000.0),
    REQUEST: _SECONDS,
    QUEUE: _SECONDS,
    COMPUTE: _SECONDS,
}
"""The upper bounds of each histogram, without +Inf, in the unit of its name. A model may choose others for these."""

DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """`histogram_latencies`, `summary_latencies` and `summary_quantiles` of --metrics-config. `steps`: the durations of
    requests are counted for the console."""

    histograms: bool = False
    summaries: bool = False
    steps: bool = False
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES


def parse_quantiles(text: str) -> tuple[float, ...]:
    """The quantiles of `<quantile>:<error>,...`, in their order. Raises ValueError for a pair that cannot be.

    The error that a pair allows is not needed: every quantile is within one percent of the value.
    """
    found: dict[float, None] = {}
    for pair in text.split(","):
        try:
            quantile, error = map(float, pair.split(":", 1))
        except ValueError:
            quantile = error = -1.0
        if not (0 <= quantile <= 1 and 0 <= error <= 1):
            raise ValueError(f"Invalid option: [{pair}]. Expected format is <quantile>:<error>, both from 0 to 1")
        found[quantile] = None
    return tuple(found)


# Headers that become parameters (--http-header-forward-pattern) and that no log may have.
SECRETS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "x-amz-security-token"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLogOptions:
    """`target` is a folder, an object store's URI or an http(s) URL. `sample` is the part of the requests that is
    recorded. `max_bytes`: of the tensors of a request, and of its responses. `redacted` are names of tensors and
    parameters. `service` and `namespace` are KServe's, for events; "" if they are not known.
    """

    target: str
    sample: float = 1.0
    max_bytes: int = 1 << 20
    redacted: Collection[str] = ()
    service: str = ""
    namespace: str = ""
