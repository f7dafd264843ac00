"""The expiry of an endpoint: a label that `delete --expired` reads, because endpoints cost money until deleted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

LABEL = "trident-expires"
NEVER = "none"
# Labels allow only lower case.
_FORM = "%Y%m%dt%H%M%Sz"
_SPAN = re.compile(r"(\d{1,4})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def parse_ttl(text: str) -> timedelta | None:
    """The duration of `30m`, `4h` or `7d`; None for `none`. Raises ValueError."""
    if text == NEVER:
        return None
    found = _SPAN.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError(f"it takes 30m, 4h, 7d or the like, or {NEVER}, not '{text}'")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def expiry_labels(ttl: timedelta | None, now: datetime) -> dict[str, str]:
    """The label for an expiry `ttl` after `now`; empty without an expiry."""
    return {} if ttl is None else {LABEL: (now + ttl).astimezone(UTC).strftime(_FORM)}


def expiry_of(labels: Mapping[str, str]) -> datetime | None:
    """The time in the label; None without the label. Raises ValueError for a malformed label."""
    text = labels.get(LABEL)
    return None if text is None else datetime.strptime(text, _FORM).replace(tzinfo=UTC)
