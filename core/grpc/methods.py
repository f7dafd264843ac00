"""A method of a service, as the front end serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from core.grpc.status import Status

if TYPE_CHECKING:
    from core.grpc.calls.call import Call
    from core.grpc.front_end import GrpcFrontEnd
    from core.grpc.request_head import RequestHead
    from core.grpc.transport import Stream
    from core.inference.tensors import Buffer

Rpc = Callable[["GrpcFrontEnd", "Buffer"], bytes]
MakeCall = Callable[["GrpcFrontEnd", "Stream", "RequestHead"], "Call"]


class Method:
    """One row of the method table of one front end.

    `group` is the group of restricted protocols, "" for none. `make_call` makes the receiver of a call. `rpc` serves a
    call that has one request and one response; `waits`: it may wait, so it gets a greenlet of its own. `ended` counts
    the calls by their status.
    """

    __slots__ = ("ended", "group", "make_call", "name", "path", "rpc", "service", "waits")

    def __init__(
        self, service: str, name: str, group: str, make_call: MakeCall, rpc: Rpc | None = None, *, waits: bool = False
    ) -> None:
        self.service = service
        self.name = name
        self.path = f"/{service}/{name}"
        self.group = group
        self.make_call = make_call
        self.rpc = rpc
        self.waits = waits
        self.ended = [0] * len(Status)
