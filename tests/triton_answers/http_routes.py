"""Paths and methods of HTTP: routes, what is near them, and what is none."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.inference import NEWER, simple, write_golden_models

OPTIONS = ()
# With the bodies that the methods send.
ROUTES = {
    "/v2": b"",
    "/v2/health/live": b"",
    "/v2/health/ready": b"",
    "/v2/models/stats": b"",
    "/v2/models/simple": b"",
    "/v2/models/simple/versions/1": b"",
    "/v2/models/simple/ready": b"",
    "/v2/models/simple/versions/1/ready": b"",
    "/v2/models/simple/config": b"",
    "/v2/models/simple/stats": b"",
    "/v2/models/simple/infer": json.dumps(simple()).encode(),
    "/v2/models/simple/generate": b"{}",
    "/v2/models/simple/generate_stream": b"{}",
    "/v2/models/simple/trace/setting": b"{}",
    "/v2/trace/setting": b"{}",
    "/v2/logging": b"{}",
    "/v2/systemsharedmemory/status": b"",
    "/v2/systemsharedmemory/region/none/status": b"",
    "/v2/systemsharedmemory/register": b"{}",
    "/v2/systemsharedmemory/region/none/register": b"{}",
    "/v2/systemsharedmemory/unregister": b"",
    "/v2/systemsharedmemory/region/none/unregister": b"",
    "/v2/cudasharedmemory/status": b"",
    "/v2/cudasharedmemory/region/none/status": b"",
    "/v2/cudasharedmemory/unregister": b"",
    "/v2/repository/index": b"{}",
    "/v2/repository/models/simple/load": b"{}",
    "/v2/repository/models/simple/unload": b"{}",
}
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS")

OPTIONS_ANSWERED = {"status": 200, "type": "text/plain", "has_body": False}


def not_found(text: str, kind: str = "text/plain") -> Answers:
    return {"status": 404, "type": kind, "body": {"error": text}}


OTHERWISE: dict[str, tuple[str, Any]] = {
    **{f"methods: OPTIONS {path}": ("OPTIONS names the methods of a path", OPTIONS_ANSWERED) for path in ROUTES},
    "forms: /v2/models/none/ready": (NEWER, not_found("Request for unknown model: 'none' is not found")),
    "forms: /v2/models/stats/ready": (NEWER, not_found("Request for unknown model: 'stats' is not found")),
    **{
        f"forms: /v2/models/simple/versions/{version}/ready": (
            NEWER,
            not_found(f"Request for unknown model: 'simple' version {version} is not found"),
        )
        for version in (0, 2)
    },
    "forms: /v2/models/%73imple": (
        "the name of a model may be percent-encoded",
        {"status": 200, "type": "application/json", "has_body": True},
    ),
}


def write_models(folder: Path) -> None:
    write_golden_models(folder, "simple")


def ask(server: ServerProcess, method: str, path: str, body: bytes = b"") -> Any:
    """Status and content type, and the body of an error."""
    connection = HTTPConnection(HOST, server.http_port, timeout=60)
    try:
        connection.request(method, path, body or None)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    answer: Answers = {"status": response.status, "type": response.headers.get("Content-Type")}
    if response.status != 200:
        try:
            answer["body"] = json.loads(content)
            answer["body"].pop("hint", None)
        except ValueError:
            answer["text"] = content.decode()
    else:
        answer["has_body"] = bool(content)
    return answer


def ask_methods(server: ServerProcess) -> Answers:
    return {
        f"{method} {path}": ask(server, method, path, body if method in ("POST", "PUT") else b"")
        for path, body in ROUTES.items()
        for method in METHODS
    }


def ask_tails(server: ServerProcess) -> Answers:
    answers = {}
    for path, body in ROUTES.items():
        method = "POST" if body else "GET"
        for tail in ("/", "/none", "x", "?a=/", "#fragment", "%2F"):
            answers[f"{path}{tail}"] = ask(server, method, path + tail, body)
    return answers


def ask_forms(server: ServerProcess) -> Answers:
    paths = [
        "/",
        "//v2",
        "/v2//health/live",
        "/V2/health/live",
        "/v2/Health/live",
        "/v2/health",
        "/v2/health/",
        "/v1",
    ]
    paths += ["/v2/./health/live", "/v2/health/../health/live", "/../v2", "/v2/%68ealth/live", "/v2%2Fhealth/live"]
    paths += ["/v2/models", "/v2/models/", "/v2/models//", "/v2/models/simple/versions", "/v2/models/simple/versions/"]
    paths += ["/v2/models/simple/versions/1/", "/v2/models/simple/versions/a", "/v2/models/simple/versions/1/none"]
    paths += ["/v2/models/none", "/v2/models/none/ready", "/v2/models/none/config", "/v2/models/none/stats"]
    paths += [
        f"/v2/models/simple/versions/{v}{tail}" for v in ("2", "0", "-1", "x") for tail in ("", "/ready", "/config")
    ]
    paths += [f"/v2/models/simple/versions/{v}/stats" for v in ("1", "2", "x")]
    paths += [
        "/v2/models/%73imple",
        "/v2/models/simple%00",
        "/v2/models/stats/ready",
        "/v2/models/stats/",
        "/v2/health/x",
    ]
    paths += ["/v2/models/simple/infer/x", "/v2/models/a/b/c", "/v2/repository", "/v2/repository/models", "/v2/trace"]
    paths += ["/v2/systemsharedmemory", "/v2/systemsharedmemory/region", "/v2/systemsharedmemory/region//status"]
    paths += ["/v2/systemsharedmemory/region/a/b/status", "/v2/cudasharedmemory/none", "/v2/gpusharedmemory/status"]
    paths += ["http://example.com/v2", "http://example.com/v2/health/live", "/v2;a=1", "/v2/health/live;a"]
    paths += [
        "/metrics",
        "/favicon.ico",
        "/v2/models/simple/ready?verbose=1",
        "/v2/models/simple/trace",
        "/v2/logging/x",
    ]
    return {path: ask(server, "GET", path) for path in paths}
