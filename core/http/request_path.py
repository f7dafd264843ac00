"""The path of a request as the client sent it: not percent-decoded, with all its slashes, without the query.

WSGI decodes PATH_INFO, but Triton matches the raw path: `/v2/models/a%2Fb` is a model called `a%2Fb`.
Source: docs/spec/http.md section 2.
"""

from __future__ import annotations

import re

from core.http.reply import Environ

_AFTER_PATH = re.compile(r"[?#]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def request_target(environ: Environ) -> str:
    """The request target (RAW_URI) if the server passes it, else the decoded path. Latin-1 text, as WSGI has it."""
    target: str = environ.get("RAW_URI") or environ["PATH_INFO"]
    return target


def path_of(target: str) -> str:
    """The path in a request target as text; bytes that are not UTF-8 become replacement characters."""
    path = _AFTER_PATH.split(target, maxsplit=1)[0]
    if not path.startswith("/"):
        path = _SCHEME.sub("", path, count=1) or "/"
    if path.isascii():
        return path
    return path.encode("latin-1", "replace").decode("utf-8", "replace")


def request_path(environ: Environ) -> str:
    return path_of(request_target(environ))
