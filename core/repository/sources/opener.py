"""From a value of --model-repository to the Source that it names."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from core.repository.cache.model_cache import ModelCache
from core.repository.download.downloader import Downloader
from core.repository.download.progress import DownloadProgress
from core.repository.location import Location, parse_location
from core.repository.sources.any_layout import AnyLayoutSource
from core.repository.sources.local import LocalSource
from core.repository.sources.object_store import ObjectSource
from core.repository.sources.source import Source
from core.repository.stores.cloud_credentials import GcsCredential, S3Credential, read_cloud_credentials
from core.repository.stores.object_store import ObjectStore
from core.repository.stores.renewed_store import RenewedStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """`cache_bytes` bounds what is kept in `cache_directory`; 0 for no bound.

    `credential_path` is the value of TRITON_CLOUD_CREDENTIAL_PATH, empty where it is not set.
    """

    cache_directory: Path
    cache_bytes: int
    credential_path: str = ""


class SourceOpener:
    """Opens the repositories of one server: all that are in object stores share a cache and their `progress`.

    The cache directory and the SDKs are touched when the first repository needs them. Any thread.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.progress = DownloadProgress()
        self._options = options
        self._lock = threading.Lock()
        self._downloader: Downloader | None = None

    def open(self, text: str, *, any_layout: bool = False, single_model: str = "") -> Source:
        """Asks no storage. Raises Unsupported and ConfigInvalid as `parse_location` and `read_cloud_credentials` do.

        With `any_layout` what is there may also be a single model, which is then called `single_model` if that is not
        empty, and must not be nothing; not so at the root of a bucket or a file system, which has no name.
        RepositoryUnavailable where the credential file has nothing for it or the cache directory cannot be used.
        """
        location = parse_location(text)
        source = self._open(location, location)
        if not any_layout:
            return source
        if location.scheme == "local":
            path = Path(location.text).absolute()
            if not path.name:
                return source
            return AnyLayoutSource(LocalSource(path.parent), path.name, source, name=single_model, required=True)
        outer, _, folder = location.prefix.rpartition("/")
        if not folder:
            return source
        parent = replace(location, text=location.text.removesuffix(f"/{folder}"), prefix=outer)
        return AnyLayoutSource(self._open(parent, location), folder, source, name=single_model, required=True)

    def _open(self, location: Location, credited: Location) -> Source:
        """`credited` is the location that the credentials are for."""
        if location.scheme == "local":
            return LocalSource(Path(location.text))
        store = RenewedStore(
            location.text, lambda: self._credential(credited), lambda credential: _store(location, credential)
        )
        return ObjectSource(store, self._shared_downloader())

    def stop(self) -> None:
        """Give up the downloads that run, soon; none starts again."""
        with self._lock:
            downloader = self._downloader
        if downloader is not None:
            downloader.stop()

    def _credential(self, location: Location) -> S3Credential | GcsCredential | None:
        return read_cloud_credentials(self._options.credential_path).credentials_for(location)

    def _shared_downloader(self) -> Downloader:
        with self._lock:
            if self._downloader is None:
                cache = ModelCache(self._options.cache_directory, self._options.cache_bytes)
                self._downloader = Downloader(cache, self.progress)
            return self._downloader


def _store(location: Location, credential: S3Credential | GcsCredential | None) -> ObjectStore:
    # Imported here: each SDK takes a second and tens of megabytes, which a server without such a storage need not pay.
    if location.scheme == "s3":
        from core.repository.stores.s3.store import S3Store

        return S3Store(location, credential if isinstance(credential, S3Credential) else None)
    from core.repository.stores.gcs.store import GcsStore

    return GcsStore(location, credential if isinstance(credential, GcsCredential) else None)
