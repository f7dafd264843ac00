"""The server, as the library in a stub process sees it: the protocol `Server`, and the one that is connected.

`trident_stub.main` connects the real one before it loads the model; tests connect one in memory.
Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Callable, Protocol

if TYPE_CHECKING:
    from .request import InferenceRequest
    from .response import InferenceResponse


class ResponseStream(Protocol):
    """The responses to a request that the model sent to another model. Any thread."""

    def next(self, timeout: float | None = None) -> InferenceResponse | None:
        """The next response, waited for; None when all have come. Raises TimeoutError after `timeout` seconds."""
        ...

    def cancel(self) -> None:
        """Tell the server that no more responses are wanted. Those that come nevertheless may still be taken."""
        ...

    def add_listener(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on any thread, as soon as `next` would not wait: at once if that is already so."""
        ...


class Server(Protocol):
    """What the library asks of the server. Any thread, several at once."""

    def send(self, request_number: int, response: InferenceResponse | None, final: bool) -> None:
        """Send a response of a sender; `response` may be None if it is `final`.

        Called by InferenceResponseSender, which has checked the order. Its outputs are the requested ones only. Blocks
        while the client has not taken what was sent before.
        """
        ...

    def together(self) -> AbstractContextManager[None]:
        """A context: the server gets what is sent in it as one piece, at its end. Nothing in it may wait."""
        ...

    def is_cancelled(self, request_number: int) -> bool:
        """Whether the client of a request went away. Costs no round trip."""
        ...

    def is_full(self, request_number: int) -> bool:
        """Whether `send` would block, because the client has not taken what was sent before."""
        ...

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """Write a line of the model's log. `level` is one of trident_stub.logger.LogLevel; `file` has no folder."""
        ...

    def infer(self, request: InferenceRequest, decoupled: bool, within: bool) -> ResponseStream:
        """Send a request of the model to another model; returns at once. Failures are responses with an error.

        It reads `request.inputs()`, `request._requested` and `request._description()`. If not
        `decoupled`, exactly one response comes, and a decoupled target answers with an error. `within`: the model's
        `execute` does not return before the responses have come.
        """
        ...

    def call(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Ask the server for something other than an inference, and wait. Raises TritonModelException with its text.

        The names and their fields are those of trident_stub.business_logic and trident_stub.metrics.
        """
        ...


_connected: Server | None = None


def connect(server: Server | None) -> None:
    """Make `server` the one that `current` returns; None: there is no server any more."""
    global _connected
    _connected = server


def current() -> Server:
    """The connected server. Raises RuntimeError outside a stub process."""
    if _connected is None:
        raise RuntimeError(
            "triton_python_backend_utils reaches its server only inside a model that a server has loaded"
        )
    return _connected
