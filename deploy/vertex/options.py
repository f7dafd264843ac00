"""A probe of the container in one text: `KIND:WHAT[,period=S][,timeout=S][,failures=N][,delay=S]`.

KIND is `http` (WHAT is a path), `tcp` (a port) or `exec` (a command, split as a shell does it).
Source: docs/spec/vertex.md section A2.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from google.cloud.aiplatform_v1 import Probe

from trident.adapters.common.options import BadOption

# Source: the documentation of the field `labels` of Model.
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping. Raises BadOption for a text without `=` and for a repeated name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadOption.of(flag, f"it takes NAME=VALUE, not '{text}'")
        if name in found:
            raise BadOption.of(flag, f"'{name}' is given twice")
        found[name] = value
    return found


def labels(texts: Sequence[str]) -> dict[str, str]:
    """The labels that `--label` gives. Raises BadOption."""
    found = pairs(texts, "--label")
    for name, value in found.items():
        if not _KEY.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadOption.of("--label", f"a label consists of up to 63 of a-z, 0-9, - and _, unlike '{name}={value}'")
    return found


_FIELDS = {
    "period": "period_seconds",
    "timeout": "timeout_seconds",
    "failures": "failure_threshold",
    "delay": "initial_delay_seconds",
}
_TAIL = re.compile(r",([a-z]+)=(\d{1,5})$")


def parse_probe(text: str, flag: str, port: int) -> Probe:
    """The probe that `text` describes; `port` is the container's, for `http`. Raises BadOption."""
    what, numbers = text, {}
    while found := _TAIL.search(what):
        if found[1] not in _FIELDS:
            raise BadOption.of(flag, f"unknown setting '{found[1]}'; expected one of {', '.join(_FIELDS)}")
        numbers[_FIELDS[found[1]]] = int(found[2])
        what = what[: found.start()]
    kind, _, target = what.partition(":")
    if kind == "http" and target.startswith("/"):
        return Probe(http_get=Probe.HttpGetAction(path=target, port=port), **numbers)
    if kind == "tcp" and target.isdecimal():
        return Probe(tcp_socket=Probe.TcpSocketAction(port=int(target)), **numbers)
    if kind == "exec" and target.strip():
        return Probe(exec_=Probe.ExecAction(command=shlex.split(target)), **numbers)
    raise BadOption.of(flag, f"it takes http:/PATH, tcp:PORT or exec:COMMAND, not '{what}'")


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
