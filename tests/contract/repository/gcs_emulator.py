"""`gcp-storage-emulator`.

What it does not do, and a test must get elsewhere: pages (a listing is always whole), `fields`, generations and
preconditions (an object's content is always the newest), objects without an MD5, `Content-Encoding` in responses,
ranges beyond the end (no 416), refusals. It has one thread and speaks HTTP/1.0. Empty objects cannot be uploaded in the
simple way, so `put` uploads them in two parts.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from urllib.parse import quote

from tests.contract.repository.emulator_process import EmulatorProcess
from tests.contract.servers.ports import HOST
from tests.waiting import LIMIT_S
from trident.core.repository.location import parse_location
from trident.core.repository.stores.gcs import GcsStore
from trident.core.repository.stores.object_store import GcsCredential, StoredObject

_BOUNDARY = "two-parts"


class GcsEmulator(EmulatorProcess):
    """Let a client find it with STORAGE_EMULATOR_HOST=`endpoint`."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "gcp_storage_emulator", "start", f"--host={HOST}", f"--port={self.port}", "-qM"]

    def answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._request("GET", "/")[0] == 200
        return False

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """An object, in the place of one of that name if there is one; the bucket is made where it is missing."""
        if self._request("GET", f"/storage/v1/b/{quote(bucket)}")[0] == 404:
            self._expect_ok("POST", "/storage/v1/b?project=test", json.dumps({"name": bucket}).encode())
        path = f"/upload/storage/v1/b/{quote(bucket)}/o?name={quote(name, safe='')}&uploadType="
        if content:
            self._expect_ok("POST", path + "media", content, "application/octet-stream")
        else:
            part = f"--{_BOUNDARY}\r\nContent-Type: application/"
            body = f"{part}json\r\n\r\n{{}}\r\n{part}octet-stream\r\n\r\n\r\n--{_BOUNDARY}--\r\n"
            self._expect_ok("POST", path + "multipart", body.encode(), f"multipart/related; boundary={_BOUNDARY}")

    def delete(self, bucket: str, name: str) -> None:
        self._expect_ok("DELETE", f"/storage/v1/b/{quote(bucket)}/o/{quote(name, safe='')}")

    def _expect_ok(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> None:
        status, answer = self._request(method, path, body, kind)
        assert status == 200, f"{method} {path}: {status} {answer!r}"

    def _request(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if body else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def store_at(uri: str = "gs://models/repo", credential: GcsCredential | None = None) -> GcsStore:
    """The store of a location, configured by the environment and `credential`."""
    return GcsStore(parse_location(uri), credential)


def found(store: GcsStore, key: str) -> StoredObject:
    return next(each for each in store.list() if each.key == key)
