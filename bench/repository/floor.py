"""What a cold start cannot do without: `python -m bench.repository.floor {sdk|sockets} ENDPOINT MODEL FOLDER`.

Downloads version 1 of a model, makes a session of it, and ends. It prints the seconds from the end of its imports on.

    sdk       boto3's transfer manager with its defaults: what a person would write
    sockets   as fast as the storage gives: bare connections, eight ranges of 8 MB at a time, received into buffers and
              written to files of their full size; no signatures, no retries, no checksums
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections import deque
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

BUCKET = "bench"
CONNECTIONS = 8
RANGE_BYTES = 8 << 20
BUFFER_BYTES = 256 << 10
HEAD_END = b"\r\n\r\n"
_OBJECT = re.compile(r"<Key>(.*?)</Key>.*?<Size>(\d+)</Size>")


def by_sdk(endpoint: str, model: str, folder: Path) -> None:
    import boto3
    from boto3.s3.transfer import TransferConfig, create_transfer_manager

    client = boto3.session.Session().client("s3", endpoint_url=endpoint)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{model}/")
    with create_transfer_manager(client, TransferConfig()) as manager:
        futures = []
        for entry in [entry for page in pages for entry in page["Contents"]]:
            path = folder / entry["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            futures.append(manager.download(BUCKET, entry["Key"], str(path)))
        for future in futures:
            future.result()


def by_sockets(endpoint: str, model: str, folder: Path) -> None:
    address = (urlsplit(endpoint).hostname or "", urlsplit(endpoint).port or 80)
    connection = HTTPConnection(*address)
    connection.request("GET", f"/{BUCKET}?list-type=2&prefix={model}/")
    ranges: deque[tuple[str, int, int, int]] = deque()
    for key, size in _OBJECT.findall(connection.getresponse().read().decode()):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, int(size))
        ranges += [(key, file, at, min(int(size), at + RANGE_BYTES)) for at in range(0, int(size), RANGE_BYTES)]
    threads = [Thread(target=_receive, args=(address, ranges)) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _receive(address: tuple[str, int], ranges: deque[tuple[str, int, int, int]]) -> None:
    """Receive ranges of files over one connection until none is left."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with socket.create_connection(address) as connection:
        while ranges:
            try:
                key, file, at, stop = ranges.popleft()
            except IndexError:  # another thread was faster
                return
            lines = f"GET /{BUCKET}/{key} HTTP/1.1", f"Host: {address[0]}", f"Range: bytes={at}-{stop - 1}"
            connection.sendall("\r\n".join(lines).encode() + HEAD_END)
            head = b""
            while HEAD_END not in head:
                head += connection.recv(BUFFER_BYTES)
            head, _, begun = head.partition(HEAD_END)
            if b" 206 " not in head:
                raise RuntimeError(f"the storage answers {head[:40]!r}")
            at += os.pwrite(file, begun, at)
            while at < stop:
                received = connection.recv_into(buffer[: stop - at])
                at += os.pwrite(file, buffer[:received], at)


def main(how: str, endpoint: str, model: str, folder: Path) -> None:
    if how == "sdk":
        by_sdk(endpoint, model, folder)
        import onnxruntime
    else:
        import onnxruntime

        start = time.perf_counter()
        by_sockets(endpoint, model, folder)
        downloaded = time.perf_counter()
    onnxruntime.InferenceSession(folder / model / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    if how == "sockets":
        print(downloaded - start, time.perf_counter() - downloaded)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
