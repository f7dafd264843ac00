"""Fills the emulators of the compose file, and loads models as a platform would.

    python seed.py s3 ENDPOINT BUCKET/PREFIX FOLDER
    python seed.py gs ENDPOINT BUCKET/PREFIX FOLDER
    python seed.py sagemaker ADDRESS NAME=PATH [NAME=PATH ...]

Waits until the service answers. The exit status is 0 when everything exists; a second run changes nothing.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

_LIMIT_S = 120.0
_CALL_LIMIT_S = 30.0
_PAUSE_S = 0.2
_THERE_ALREADY = 409


def seed_s3(endpoint: str, place: str, folder: Path) -> None:
    """Put the files of `folder` into `place`, which is BUCKET/PREFIX. The emulator accepts any credentials."""
    import boto3

    _wait_for(f"{endpoint}/")
    bucket, _, prefix = place.partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="emulator",
        aws_secret_access_key="emulator",
    )
    client.create_bucket(Bucket=bucket)
    for name, path in _files(folder):
        client.upload_file(str(path), bucket, f"{prefix}/{name}")


def seed_gs(endpoint: str, place: str, folder: Path) -> None:
    """As seed_s3, for Google Cloud Storage, through its JSON API without Google's libraries."""
    _wait_for(f"{endpoint}/")
    bucket, _, prefix = place.partition("/")
    _post(f"{endpoint}/storage/v1/b?project=emulator", json.dumps({"name": bucket}).encode(), "application/json")
    for name, path in _files(folder):
        target = f"{endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(f'{prefix}/{name}', safe='')}"
        _post(target, path.read_bytes(), "application/octet-stream")


def load_models(address: str, models: list[tuple[str, str]]) -> None:
    """Make the container of a multi-model endpoint load models by name and path."""
    _wait_for(f"{address}/ping")
    for name, path in models:
        body = json.dumps({"model_name": name, "url": path}).encode()
        _post(f"{address}/models", body, "application/json")


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _wait_for(url: str) -> None:
    """Wait until `url` answers with any status. Raises SystemExit after the limit."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=_CALL_LIMIT_S).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            time.sleep(_PAUSE_S)
    raise SystemExit(f"{url} does not answer")


def _post(url: str, body: bytes, content_type: str) -> None:
    """Raises SystemExit for a refusal, unless the resource exists already."""
    request = urllib.request.Request(url, body, {"Content-Type": content_type}, method="POST")
    try:
        urllib.request.urlopen(request, timeout=_CALL_LIMIT_S).close()
    except urllib.error.HTTPError as error:
        with error:
            if error.code != _THERE_ALREADY:
                raise SystemExit(f"{url}: {error.code} {error.read(4096)!r}") from None


def main(arguments: list[str]) -> None:
    match arguments:
        case ["s3", endpoint, place, folder]:
            seed_s3(endpoint, place, Path(folder))
        case ["gs", endpoint, place, folder]:
            seed_gs(endpoint, place, Path(folder))
        case ["sagemaker", address, *texts] if texts and all("=" in text for text in texts):
            load_models(address, [(name, path) for name, _, path in (text.partition("=") for text in texts)])
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
