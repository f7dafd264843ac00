"""The phases of a connection."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Phase(Enum):
    """What a connection waits for. Every phase except APPLICATION has a timeout.

    A connection begins as NEW, with TLS after its HANDSHAKE, and is IDLE between requests. From there a request goes
    to HEAD, BODY and APPLICATION; it skips HEAD and BODY if it arrives whole. A response that the socket does not take
    at once goes through SEND, and back to the phase before it. LINGER follows a refusal. ENDED follows every phase.
    """

    HANDSHAKE = "the TLS handshake"
    NEW = "its first request"
    IDLE = "another request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    APPLICATION = "the application"
    SEND = "the client to take its response"
    LINGER = "the client to read a refusal"
    ENDED = "nothing"


# In Python 3.11 a member costs a function call when it is looked up on its class.
IDLE: Final = Phase.IDLE
APPLICATION: Final = Phase.APPLICATION
