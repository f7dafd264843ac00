"""Which engine runs a request. Pure functions.

Source: docs/processes.md "Several engines".
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def least_busy(in_flight: Sequence[int], turn: int) -> int:
    """The index of the less busy of two: with two engines of both, with more of a pair that changes with `turn`.

    Comparing two is enough (the load of the fullest grows with the logarithm of the logarithm of their number), and
    costs the same for any number. Equally busy engines take turns.
    """
    count = len(in_flight)
    first = turn % count
    second = (first + 1 + turn // count % (count - 1)) % count if count > 1 else first
    return second if in_flight[second] < in_flight[first] else first


def home_of(key: str, engines: Sequence[int]) -> int:
    """Which of `engines`, by their numbers in the server, has the state that `key` names.

    All front ends come to the same answer, without a word between them. If an engine is missing, only what had its
    state there moves (rendezvous hashing).
    """
    text = key.encode("utf-8", "replace")
    return max(range(len(engines)), key=lambda position: blake2b(b"%d %s" % (engines[position], text)).digest())
