"""What the pairs of turns of one row say: whether this checkout is slower than the other one allows."""

from __future__ import annotations

import enum

from bench.turns import Ratio

LIMIT = 0.95


class Verdict(enum.Enum):
    """The value is the word in the table."""

    OK = "ok"
    UNSURE = "not decided"
    """An interval reaches below the limit, but does not all lie there. More pairs narrow it."""
    SLOWER = "**slower**"
    NEW = "new"
    """The other checkout does not serve it."""

    @classmethod
    def of(cls, *ratios: Ratio) -> Verdict:
        """Each of `ratios` is a speed of this checkout over the other's. SLOWER if a whole 95 % interval says so."""
        if any(ratio.high < LIMIT for ratio in ratios):
            return cls.SLOWER
        return cls.OK if all(ratio.low >= LIMIT for ratio in ratios) else cls.UNSURE
