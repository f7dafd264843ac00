"""Triton's service over gRPC, as an application for a server of HTTP/2.

Source: docs/spec/grpc.md.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from prometheus_client.registry import Collector

from core.engine.protocol import Engine
from core.errors import ServerError
from core.frontend.auth_tokens import AuthTokens, Unauthenticated
from core.frontend.bridge import HubBridge
from core.frontend.request_body import Allocate
from core.frontend.restricted_apis import GRPC, Restrictions
from core.grpc.calls.refused_call import RefusedCall
from core.grpc.compression import IDENTITY, response_encoding
from core.grpc.counted_stream import CountedReceiver, CountedStream
from core.grpc.front_end import GrpcFrontEnd, Spawn
from core.grpc.header_sections import COMPRESSED
from core.grpc.metadata import is_custom
from core.grpc.method_table import methods
from core.grpc.methods import Method
from core.grpc.options import GrpcOptions
from core.grpc.request_head import VOLATILE, RequestHead, read_head, with_volatile
from core.grpc.transport import Application, Fields, Receiver, Stream
from core.observability.logging import verbose_level
from core.observability.switches import SWITCHES

_log: Final = logging.getLogger("trident.grpc")
# As for HTTP's requests.
_LEVEL: Final = verbose_level(1)


class GrpcApplication(Application):
    """The application of a gRPC port. `spawn(function, *args)` starts a greenlet; `allocate` gives memory for large
    messages, None for the heap. All methods are called on the hub's thread.
    """

    def __init__(
        self, engine: Engine, options: GrpcOptions, bridge: HubBridge, spawn: Spawn, allocate: Allocate | None = None
    ) -> None:
        rows = methods(reflection=options.reflection)
        self.front_end = GrpcFrontEnd(engine, options, bridge, spawn, allocate, rows)
        self._methods = {method.path: method for method in rows}
        self._restrictions = Restrictions(options.restricted, GRPC)
        self._tokens = options.tokens

    @property
    def volatile(self) -> frozenset[bytes]:
        return VOLATILE

    def parse_head(self, fields: Fields) -> RequestHead:
        head = read_head(fields, self._methods)
        if head.error is None and not head.http_status:
            try:
                self._judge(head, dict(fields))
            except ServerError as error:
                head.error = error
        return head

    def with_volatile(self, head: RequestHead, fields: Fields) -> RequestHead:
        copy = with_volatile(head, fields)
        if self.front_end.options.header_pattern is not None and copy.error is None and not copy.http_status:
            self._judge(copy, dict(copy.metadata.fields))
        return copy

    def open(self, stream: Stream, head: RequestHead) -> Receiver:
        if SWITCHES.requests:
            _log.log(_LEVEL, "gRPC request: %s", head.path)
        counted = None
        if SWITCHES.access:
            stream = counted = CountedStream(stream)
        if self._tokens is not None and head.error is None and head.method is not None:
            head = self._with_token(self._tokens, head, head.method)
        if head.error is not None or head.http_status:
            refused = RefusedCall(self.front_end, stream, head)
            refused.refuse()
            return refused
        assert head.method is not None
        call = head.method.make_call(self.front_end, stream, head)
        return call if counted is None else CountedReceiver(counted, call)

    def begin_exit(self) -> None:
        """Refuse new requests on open streams. Calls that their clients have begun are answered."""
        self.front_end.begin_exit()

    @property
    def request_metrics(self) -> Collector:
        """The counts of calls, for the metrics page."""
        return self.front_end.counts.counter

    def _with_token(self, tokens: AuthTokens, head: RequestHead, method: Method) -> RequestHead:
        """The head, or one with an error. For each call, because heads are remembered and tokens are replaced."""
        try:
            tokens.check(method.group, head.metadata.text)
        except Unauthenticated as error:
            return replace(head, error=error)
        return head

    def _judge(self, head: RequestHead, fields: dict[bytes, bytes]) -> None:
        """Add to `head` what the options say about it. Raises ApiRestricted."""
        front_end, method = self.front_end, head.method
        assert method is not None
        if method.group:
            self._restrictions.check(method.group, head.metadata.text)
        if method.group != "inference":
            return
        encoding = response_encoding(front_end.compression, fields.get(b"grpc-accept-encoding", b""))
        if encoding is not IDENTITY:
            head.response_encoding = encoding
            head.response_headers = COMPRESSED[encoding]
        pattern = front_end.options.header_pattern
        if pattern is not None:
            head.forwarded = tuple(
                (name.decode("latin-1"), value.decode("utf-8", "replace"))
                for name, value in head.metadata.fields
                if is_custom(name) and pattern.matches(name.decode("latin-1"))
            )
