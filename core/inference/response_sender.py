"""How a model answers a request other than by the result of its execution: later, more than once, or from any thread.

Source: docs/spec/schedulers.md section 3.8, docs/spec/python-backend.md section 4.3 ("InferenceResponseSender").
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from core.errors import ServerError
from core.inference.request import Parameter
from core.inference.response import Outputs


class Later(Enum):
    """The type of LATER and AGAIN."""

    LATER = "the request is answered through its sender"
    AGAIN = "the request is to be executed again"


LATER: Final = Later.LATER
"""An outcome of an execution: the request is answered through its sender, or has been already."""
AGAIN: Final = Later.AGAIN
"""An outcome of an execution: the request is to be executed again. Its sender sends nothing any more."""


class ResponseSender(Protocol):
    """Sends the responses to one request of an execution. Any thread; several may send at once.

    Keep it until the final response: a sender that is dropped before answers its request with an error.
    """

    @property
    def is_cancelled(self) -> bool:
        """Nobody wants the responses any longer. The final one is needed still, the others are dropped."""
        ...

    @property
    def is_full(self) -> bool:
        """The client has not taken enough of what was sent. `send` works, but costs memory; false once cancelled."""
        ...

    def send(
        self,
        outputs: Outputs | None,
        *,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Send a response: `outputs`, or `error` in place of them. Returns at once and never raises.

        Neither outputs nor an error, and `final`: there are no more responses. The responses of a request arrive in the
        order in which they were sent. What is sent after the final one is dropped.
        """
        ...

    def watch(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when `is_cancelled` becomes true, and each time `is_full` becomes false.

        On any thread; here, if the request is cancelled already. It must neither block nor raise.
        """
        ...
