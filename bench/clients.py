"""The load of `trident bench` on the servers of a benchmark, in runs that can be paused and continued."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from tests.project import ROOT
from trident.tools.bench.client import LoadClient, Sample, Target, grpc_frame, http_request

if TYPE_CHECKING:
    from bench.servers.server import Server

BUILD = ROOT / "build" / "bench"
GRPC_SERVICE = "/inference.GRPCInferenceService/"
# A client must be told a duration; the runner ends it earlier.
LONGEST_S = 3600.0


def target_of(
    url: str,
    bodies: Sequence[bytes],
    headers: Mapping[str, str],
    *,
    connections: int,
    in_flight: int = 1,
    streams: bool = False,
) -> Target:
    """The bodies as requests with POST in rotation, or a plain GET without any.

    They are messages of gRPC if `url` is grpc://HOST:PORT/METHOD: `in_flight` at a time on each connection, or all of a
    connection on one call if `streams`.
    """
    at = urlsplit(url)
    is_grpc = at.scheme == "grpc"
    if is_grpc:
        made = [grpc_frame(body) for body in bodies]
    else:
        path = f"{at.path or '/'}{'?' if at.query else ''}{at.query}"
        fields = {"Host": at.netloc, **headers}
        made = [http_request("POST", path, fields, body) for body in bodies] or [http_request("GET", path, fields)]
    # Where there are enough, each connection has bodies of its own, such as sequences or parts of a region.
    own = len(made) >= connections > 1
    return Target(
        host=at.hostname or "",
        port=at.port or 80,
        requests=[made[number::connections] for number in range(connections)] if own else [made],
        method=at.path if is_grpc else "",
        streams=streams,
        per_connection=own,
        in_flight=in_flight,
    )


def answered(sample: Sample) -> Sequence[float]:
    """The latencies, in seconds. RuntimeError if a request failed."""
    if sample.errors:
        raise RuntimeError(f"{sample.errors} requests failed: {sample.error}")
    return sample.latency


class Run(Protocol):
    """A load under way, in a process of its own."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def end(self) -> int:
        """End it. Returns how many requests were refused, broken, late or not answered with 2xx or 3xx."""
        ...

    def kill(self) -> None: ...


class ClientRun:
    def __init__(self, target: Target, concurrency: int) -> None:
        self._client = LoadClient(target)
        self._client.start(LONGEST_S, concurrency=concurrency)

    def pause(self) -> None:
        self._client.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._client.signal(signal.SIGCONT)

    def end(self) -> int:
        self.go_on()
        self._client.signal(signal.SIGTERM)
        return self._client.finish().errors

    def kill(self) -> None:
        self._client.signal(signal.SIGKILL)
        self._client.close()


@dataclass(frozen=True, slots=True)
class Load:
    """`server` is asked at `url` and answers with `model`; see `target_of`.

    `connections` replaces the number that the other loads of a row have, unless it is 0.
    """

    server: Server
    model: str
    url: str
    bodies: Sequence[bytes] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    in_flight: int = 1
    streams: bool = False
    connections: int = 0

    def start(self, connections: int) -> Run:
        connections = self.connections or connections
        return ClientRun(self._target(connections), connections * self.in_flight)

    def latencies(self, connections: int, seconds: float) -> Sequence[float]:
        """Those of a run of its own, in seconds. RuntimeError if a request fails."""
        connections = self.connections or connections
        with LoadClient(self._target(connections)) as client:
            return answered(client.run(seconds, concurrency=connections * self.in_flight))

    def _target(self, connections: int) -> Target:
        return target_of(
            self.url, self.bodies, self.headers, connections=connections, in_flight=self.in_flight, streams=self.streams
        )
