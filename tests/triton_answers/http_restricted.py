"""Restricted APIs over HTTP: with the header, without it, and with another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.http_routes import ROUTES
from tests.triton_answers.inference import without_reason, write_golden_models

OPTIONS = (
    "--http-restricted-api=inference,metadata,shared-memory:infer-key=infer value",
    "--http-restricted-api=model-repository,model-config:admin-key=admin=value",
    "--http-restricted-api=statistics,trace,logging:Watch-Key=on",
)
OTHERWISE: dict[str, tuple[str, Any]] = {
    "before: inference: OPTIONS /v2/models/simple/infer ": ("OPTIONS names the methods of a path", {"status": 200}),
}

HEADERS: dict[str, dict[str, str]] = {
    "none": {},
    "inference": {"infer-key": "infer value"},
    "repository": {"admin-key": "admin=value"},
    "watch": {"Watch-Key": "on"},
}
# Of inference, where the first one fits.
SPELLINGS: dict[str, dict[str, str]] = {
    "value": {"infer-key": "infer value"},
    "upper case": {"INFER-KEY": "infer value"},
    "upper case of the value": {"infer-key": "Infer value"},
    "part": {"infer-key": "infer"},
    "more": {"infer-key": "infer value 2"},
    "empty": {"infer-key": ""},
    "underscore": {"infer_key": "infer value"},
    "other": {"admin-key": "infer value"},
}


def write_models(folder: Path) -> None:
    write_golden_models(folder, "simple")


def ask(server: ServerProcess, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
    answer = without_reason(http(server, method, path, body or None, headers))
    return answer if answer["status"] != 200 else {"status": 200}


def ask_groups(server: ServerProcess) -> Answers:
    return {
        f"{path}, {name}": ask(server, "POST" if body or "register" in path else "GET", path, body, headers)
        for path, body in ROUTES.items()
        for name, headers in HEADERS.items()
    }


def ask_spellings(server: ServerProcess) -> Answers:
    return {name: ask(server, "GET", "/v2/models/simple", b"", headers) for name, headers in SPELLINGS.items()}


def ask_before(server: ServerProcess) -> Answers:
    """What is wrong besides the header."""
    answers = {}
    for name in ("none", "inference"):
        for method, path, body in (
            ("PUT", "/v2/models/simple/infer", b""),
            ("GET", "/v2/models/simple/infer", b""),
            ("POST", "/v2/models/unknown/infer", b"{}"),
            ("POST", "/v2/models/simple/versions/9/infer", b"{}"),
            ("POST", "/v2/models/simple/infer", b"nonsense"),
            ("POST", "/v2/models/simple", b""),
            ("GET", "/v2/models/unknown", b""),
            ("GET", "/v2/models/simple/", b""),
            ("GET", "/v2/none", b""),
            ("OPTIONS", "/v2/models/simple/infer", b""),
        ):
            answers[f"{name}: {method} {path} {body.decode()}"] = ask(server, method, path, body, HEADERS[name])
    return answers
