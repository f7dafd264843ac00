from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from tests.unit.shared_memory_object import shared_memory_object
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions

SHM_OFF = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
NON_STRING = "attempt to access JSON non-string as string"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
HANDLE = b64encode(bytes(64)).decode()
BAD_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(V2Application(engine, HttpOptions(allow_client_shm=True), ThreadBridge()))


@pytest.fixture
def key() -> Iterator[str]:
    with shared_memory_object(os.sysconf("SC_PAGE_SIZE")) as found:
        yield found


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_without_the_option_nothing_can_be_changed(engine: FakeEngine, kind: str) -> None:
    client = Client(V2Application(engine, HttpOptions(), ThreadBridge()))
    for tail in ("register", "unregister", "region/r/register", "region/r/unregister"):
        answer = client.post(f"/v2/{kind}sharedmemory/{tail}", data=b"no JSON")
        assert (answer.status_code, answer.content_type) == (501, "application/json")
        document: Any = answer.get_json()
        assert document["error"] == SHM_OFF
        assert client.get(f"/v2/{kind}sharedmemory/{tail}").status_code == 405
    answer = client.get(f"/v2/{kind}sharedmemory/status")
    assert (answer.status_code, answer.content_type, answer.json) == (200, "application/json", [])
    answer = client.get(f"/v2/{kind}sharedmemory/region/r/status")
    text = f"Unable to find {kind} shared memory region: 'r'"
    assert (answer.status_code, answer.get_json()["error"]) == (404, text)


def test_a_region_is_registered_shown_and_unregistered(client: Client, key: str) -> None:
    routes = "/v2/systemsharedmemory"
    answer = client.post(f"{routes}/region/r/register", json={"key": key, "byte_size": 64})
    assert (answer.status_code, answer.data, answer.headers["Content-Length"]) == (200, b"", "0")
    shown = [{"name": "r", "key": key, "offset": 0, "byte_size": 64}]
    for tail in ("status", "region/r/status"):
        assert client.get(f"{routes}/{tail}").get_json() == shown
    answer = client.post(f"{routes}/region/r/register", json={"key": key, "byte_size": 64})
    assert (answer.status_code, answer.get_json()["error"]) == (400, "shared memory region 'r' already in manager")
    assert client.post(f"{routes}/region/other/unregister").status_code == 200
    assert client.post("/v2/cudasharedmemory/unregister").status_code == 200
    assert client.get(f"{routes}/status").get_json() == shown
    assert client.post(f"{routes}/unregister").status_code == 200
    assert client.get(f"{routes}/status").get_json() == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Shared memory register request has no 'key' field"),
        ({}, "Shared memory register request has no 'key' field"),
        ({"key": "/k"}, "Shared memory register request has no 'byte_size' field"),
        ({"key": 1, "byte_size": 1}, NON_STRING),
        ({"key": None, "byte_size": 1}, NON_STRING),
        ({"key": "/k", "byte_size": "1"}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": -1}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": True}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": 1.5}, NON_UNSIGNED),
        ({"key": "/k", "byte_size": 1, "offset": []}, NON_UNSIGNED),
        ([], "attempt to access JSON non-object as object"),
    ],
)
def test_a_wrong_body_is_refused(client: Client, body: Any, text: str) -> None:
    given = {"data": body} if type(body) is bytes else {"json": body}
    answer = client.post("/v2/systemsharedmemory/region/r/register", **given)
    assert (answer.status_code, answer.get_json()["error"]) == (400, text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": {}}, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": HANDLE}}, "attempt to access non-existing object member 'byte_size'"),
        ({"raw_handle": {"b64": HANDLE}, "byte_size": 1}, "attempt to access non-existing object member 'device_id'"),
        ({"raw_handle": HANDLE}, "attempt to access JSON non-object as object"),
        ({"raw_handle": {"b64": 1}}, NON_STRING),
        ({"raw_handle": {"b64": ""}}, BAD_HANDLE),
        ({"raw_handle": {"b64": "A"}}, BAD_HANDLE),
        ({"raw_handle": {"b64": "größer"}}, BAD_HANDLE),
        ({"raw_handle": {"b64": b64encode(bytes(63)).decode()}}, BAD_HANDLE),
        ({"raw_handle": {"b64": HANDLE}, "byte_size": -1, "device_id": 0}, NON_UNSIGNED),
    ],
)
def test_a_wrong_handle_is_refused(client: Client, body: Any, text: str) -> None:
    answer = client.post("/v2/cudasharedmemory/region/r/register", json=body)
    assert (answer.status_code, answer.get_json()["error"]) == (400, text)


def test_a_handle_reaches_the_engine(client: Client, engine: FakeEngine) -> None:
    text = HANDLE[:10] + "\n !" + HANDLE[10:]
    body = {"raw_handle": {"b64": text}, "byte_size": 8, "device_id": 1}
    assert client.post("/v2/cudasharedmemory/region/r/register", json=body).status_code == 200
    assert engine.calls == [("register_cuda", "r", bytes(64), 1, 8)]


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_a_region_needs_a_name(client: Client, kind: str) -> None:
    answer = client.post(f"/v2/{kind}sharedmemory/register", json={})
    text = f"'region name' is necessary to register {kind} shared memory region"
    assert (answer.status_code, answer.get_json()["error"]) == (400, text)


@pytest.mark.parametrize("path", ["/v2/othersharedmemory/status", "/v2/systemsharedmemory/other"])
def test_other_kinds_and_actions_are_not_found(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404
