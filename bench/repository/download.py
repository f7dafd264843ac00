"""Download one model, or create one session of it, in a separate process.

    python -m bench.repository.download sdk ENDPOINT MODEL FOLDER         boto3's transfer manager with its defaults
    python -m bench.repository.download trident REPOSITORY MODEL FOLDER   this project's downloader, into a new cache
    python -m bench.repository.download session MODEL.onnx

Prints one JSON object, {"seconds": …, "bytes": …}. For both downloaders the clock starts after imports, client and
first connection, and includes the listing that names the files.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bench.repository.emulators import BUCKET

VERSION = 1


def by_sdk(endpoint: str, model: str, folder: Path) -> tuple[float, int]:
    import boto3
    from boto3.s3.transfer import TransferConfig, create_transfer_manager

    client = boto3.session.Session().client("s3", endpoint_url=endpoint)
    client.list_objects_v2(Bucket=BUCKET, Delimiter="/")
    start = time.perf_counter()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{model}/")
    entries = [entry for page in pages for entry in page["Contents"]]
    # `download_file` creates one for each file. Sharing one lets small files download in parallel.
    with create_transfer_manager(client, TransferConfig()) as manager:
        futures = []
        for entry in entries:
            path = folder / entry["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            futures.append(manager.download(BUCKET, entry["Key"], str(path)))
        for future in futures:
            future.result()
    return time.perf_counter() - start, sum(entry["Size"] for entry in entries)


def by_trident(repository: str, model: str, folder: Path) -> tuple[float, int]:
    from trident.app.process.heap import keep_freed_memory
    from trident.core.repository.sources import SourceOpener, SourceOptions

    keep_freed_memory()  # as the server does when it starts
    source = SourceOpener(SourceOptions(cache_directory=folder, cache_bytes=0)).open(repository)
    source.models()
    start = time.perf_counter()
    files = source.files(model)
    if files is None:
        raise RuntimeError(f"there is no model '{model}' in {repository}")
    fetched = source.fetch(model, files, VERSION)
    fetched.release()
    return time.perf_counter() - start, sum(file.size for file in files)


def session_of(graph: Path) -> tuple[float, int]:
    from bench.servers.bare_loop import make_session

    start = time.perf_counter()
    make_session(graph, 0)
    return time.perf_counter() - start, sum(path.stat().st_size for path in graph.parent.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.repository.download")
    what = parser.add_subparsers(dest="what", required=True)
    for name in ("sdk", "trident"):
        download = what.add_parser(name)
        download.add_argument("storage")
        download.add_argument("model")
        download.add_argument("folder", type=Path)
    what.add_parser("session").add_argument("graph", type=Path)
    options = parser.parse_args()
    if options.what == "session":
        seconds, size = session_of(options.graph)
    else:
        download_by = by_sdk if options.what == "sdk" else by_trident
        seconds, size = download_by(options.storage, options.model, options.folder)
    print(json.dumps({"seconds": seconds, "bytes": size}))


if __name__ == "__main__":
    main()
