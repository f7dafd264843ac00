"""The objects of batch prediction jobs at `gs://`, which Google's SDK reads and writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import requests
from google.api_core.exceptions import GoogleAPIError
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage import Client

from trident.app.emulators.vertex.batch import InstancesFormat
from trident.app.emulators.vertex.container import STORAGE_SCHEME
from trident.app.emulators.vertex.limits import PROJECT_NUMBER
from trident.core.errors import ConfigInvalid


class Storage:
    """Objects at `gs://` by the shell's settings, or those of an emulator at STORAGE_EMULATOR_HOST."""

    def __init__(self) -> None:
        self._client = Client(project=PROJECT_NUMBER)

    def fetch(self, uris: list[str], instances_format: str, folder: Path) -> Iterator[Path]:
        """The objects as files of `folder`; an address may have `*` in it. Raises ConfigInvalid."""
        with _faults():
            for uri in uris:
                bucket, _, pattern = uri.removeprefix(STORAGE_SCHEME).partition("/")
                listed = self._client.list_blobs(bucket, prefix=pattern.partition("*")[0])
                found = [each for each in listed if fnmatchcase(each.name, pattern)]
                if not found:
                    raise ConfigInvalid(f"{uri} is not found")
                for blob in found:
                    content = blob.download_as_bytes()
                    if instances_format == InstancesFormat.FILE_LIST:
                        content = b"\n".join(self._listed(content, folder))
                    yield _written(folder, content)

    def _listed(self, names: bytes, folder: Path) -> Iterator[bytes]:
        """For each object that a list names, the name of its file in `folder`."""
        for name in names.decode(errors="replace").split():
            bucket, _, key = name.removeprefix(STORAGE_SCHEME).partition("/")
            blob = self._client.bucket(bucket).get_blob(key)
            yield name.encode() if blob is None else _written(folder, blob.download_as_bytes()).name.encode()

    def put(self, file: Path, uri: str) -> None:
        """Raises ConfigInvalid."""
        bucket, _, key = uri.removeprefix(STORAGE_SCHEME).partition("/")
        with _faults():
            self._client.bucket(bucket).blob(key).upload_from_filename(str(file))


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except (GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
        raise ConfigInvalid(f"Cloud Storage: {error}") from None


def _written(folder: Path, content: bytes) -> Path:
    descriptor, path = tempfile.mkstemp(dir=folder)
    with open(descriptor, "wb") as file:
        file.write(content)
    return Path(path)
