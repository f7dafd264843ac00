"""A probe of the container in one text: `KIND:WHAT[,period=S][,timeout=S][,failures=N][,delay=S]`.

KIND is `http` (WHAT is a path), `tcp` (a port) or `exec` (a command, split as a shell does it).
Source: docs/spec/vertex.md section A2.
"""

from __future__ import annotations

import re
import shlex

from google.cloud.aiplatform_v1 import Probe

from app.settings.option import BadOption

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
            raise BadOption.of(flag, f"'{found[1]}' is none of {', '.join(_FIELDS)}")
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
