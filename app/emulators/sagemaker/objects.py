"""The objects below a location: files of a folder of this machine, or objects in S3 by the shell's AWS settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from trident.core.errors import ConfigInvalid

S3_SCHEME = "s3://"


class Objects:
    """Reads and writes the objects at `s3://bucket/key` and at paths. Any thread."""

    def __init__(self) -> None:
        self._made: Any = None

    @property
    def _s3(self) -> Any:
        if self._made is None:
            self._made = boto3.session.Session().client("s3")
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def below(self, location: str) -> Iterator[tuple[str, str]]:
        """The objects of a prefix, a folder or a file: where each is, and its name in there. Raises ConfigInvalid."""
        if location.startswith(S3_SCHEME):
            yield from self._keys(location)
            return
        path = Path(location)
        if not path.exists():
            raise ConfigInvalid(f"there is no {path}", hint="name a file, a folder or s3://bucket/prefix")
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for file in files:
            yield str(file), file.relative_to(path).as_posix() if path.is_dir() else file.name

    def _keys(self, location: str) -> Iterator[tuple[str, str]]:
        bucket, prefix = _parts(location)
        folder = prefix[: prefix.rfind("/") + 1]
        try:
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for found in (each for page in pages for each in page.get("Contents", ())):
                if not found["Key"].endswith("/"):
                    yield f"{S3_SCHEME}{bucket}/{found['Key']}", found["Key"].removeprefix(folder)
        except (ClientError, BotoCoreError) as error:
            raise ConfigInvalid(f"{location} cannot be listed: {error}") from None

    def read(self, location: str) -> bytes:
        """Raises ConfigInvalid."""
        try:
            if not location.startswith(S3_SCHEME):
                return Path(location).read_bytes()
            bucket, key = _parts(location)
            content: bytes = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        except (ClientError, BotoCoreError, OSError) as error:
            raise ConfigInvalid(f"{location} cannot be read: {error}") from None
        return content

    def write(self, location: str, content: bytes, content_type: str) -> None:
        """Raises ConfigInvalid."""
        try:
            if location.startswith(S3_SCHEME):
                bucket, key = _parts(location)
                self._s3.put_object(Bucket=bucket, Key=key, Body=content, ContentType=content_type)
            else:
                Path(location).parent.mkdir(parents=True, exist_ok=True)
                Path(location).write_bytes(content)
        except (ClientError, BotoCoreError, OSError) as error:
            raise ConfigInvalid(f"{location} cannot be written: {error}") from None


def joined(location: str, name: str) -> str:
    """The location of the object `name` below `location`."""
    return f"{location.rstrip('/')}/{name}"


def _parts(location: str) -> tuple[str, str]:
    bucket, _, key = location.removeprefix(S3_SCHEME).partition("/")
    return bucket, key
