"""The part of S3's protocol that downloads need, over a folder: list, head and ranged get, from the page cache.

    python -m bench.servers.object_server FOLDER --port 9000

Every subdirectory of FOLDER is a bucket. Other emulators are slower than the client; this one lets the client be the
limit. It checks no credentials, listens on loopback only, and writes one line per request to standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

HOST = "127.0.0.1"
READY = "v2/health/ready"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_MODIFIED = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True, slots=True)
class ServedObject:
    """`etag` is the MD5 of the content, as S3 gives it to an object that was uploaded in one part."""

    path: Path
    size: int
    etag: str


def served_objects(folder: Path) -> dict[str, ServedObject]:
    """All files under `folder` by `bucket/key`, as they are now."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "md5")
            key = path.relative_to(folder).as_posix()
            found[key] = ServedObject(path, path.stat().st_size, digest.hexdigest())
    return found


def listing(objects: dict[str, ServedObject], bucket: str, prefix: str, delimiter: str) -> bytes:
    """The answer to ListObjectsV2, on one page."""
    contents, folders = [], set()
    for name, served in objects.items():
        its_bucket, _, key = name.partition("/")
        if its_bucket != bucket or not key.startswith(prefix):
            continue
        folder, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if found:
            folders.add(f"{prefix}{folder}{delimiter}")
            continue
        contents.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_MODIFIED}</LastModified>"
            f"<ETag>&quot;{served.etag}&quot;</ETag><Size>{served.size}</Size></Contents>"
        )
    prefixes = [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
    return (
        f"<ListBucketResult><Name>{escape(bucket)}</Name><KeyCount>{len(contents) + len(prefixes)}</KeyCount>"
        f"<IsTruncated>false</IsTruncated>{''.join(contents)}{''.join(prefixes)}</ListBucketResult>"
    ).encode()


class ObjectServer(ThreadingHTTPServer):
    """Serves `objects` until the process ends."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, objects: dict[str, ServedObject], port: int) -> None:
        self.objects = objects
        super().__init__((HOST, port), Exchange)


class Exchange(BaseHTTPRequestHandler):
    """The requests of one connection, one after another, in one thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ObjectServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        name = unquote(url.path).strip("/")
        if query.get("list-type") == "2":
            self._answer_listing(name, query)
            return
        if name == READY:
            self._answer(200, {}, b"")
            return
        served = self.server.objects.get(name)
        if served is None:
            self._answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers.get("If-Match", served.etag).strip('"') != served.etag:
            self._answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self._answer_object(served)

    do_HEAD = do_GET

    def _answer_listing(self, bucket: str, query: dict[str, str]) -> None:
        # boto3 asks for percent-encoded keys, and decodes them only if the answer says so. These are not encoded.
        body = listing(self.server.objects, bucket, query.get("prefix", ""), query.get("delimiter", ""))
        self._answer(200, {"Content-Type": "application/xml"}, body)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer_object(self, served: ServedObject) -> None:
        headers = {"ETag": f'"{served.etag}"', "Accept-Ranges": "bytes", "Last-Modified": formatdate(0, usegmt=True)}
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, stop = 0, served.size
        if wanted:
            start = int(wanted[1])
            stop = min(served.size, int(wanted[2] or served.size) + 1)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{served.size}"
        if wanted and start >= stop:
            self._answer(416, {}, b"<Error><Code>InvalidRange</Code></Error>")
            return
        self._head(206 if wanted else 200, {**headers, "Content-Length": str(stop - start)})
        if self.command != "HEAD":
            self._send_file(served.path, start, stop)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_file(self, path: Path, start: int, stop: int) -> None:
        with path.open("rb") as file:
            while start < stop:
                sent = os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)
                if not sent:
                    raise ConnectionAbortedError(f"{path} became shorter while it was sent")
                start += sent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.servers.object_server", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    ObjectServer(served_objects(options.folder), options.port).serve_forever()


if __name__ == "__main__":
    main()
