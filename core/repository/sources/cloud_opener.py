"""Opens repositories in object stores. Imported by servers that have one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core.repository.cache.model_cache import ModelCache
from core.repository.download.downloader import Downloader
from core.repository.download.progress import DownloadProgress
from core.repository.location import Location, Scheme
from core.repository.sources.object_folder import ObjectFolder
from core.repository.sources.object_store import ObjectStoreSource
from core.repository.stores.cloud_credentials import GcsCredential, S3Credential, read_cloud_credentials
from core.repository.stores.object_store import ObjectStore
from core.repository.stores.renewed_store import RenewedStore

if TYPE_CHECKING:
    from core.repository.sources.opener import SourceOptions
    from core.repository.stores.gcs.store import GcsStore
    from core.repository.stores.s3.store import S3Store


class CloudOpener:
    """Opens places in object stores, which share one cache. It imports an SDK when a store is asked. Any thread."""

    def __init__(self, options: SourceOptions, progress: DownloadProgress) -> None:
        """Makes the cache directory. Raises RepositoryUnavailable if it is unusable."""
        self._credential_path = options.credential_path
        self._downloader = Downloader(ModelCache(options.cache_directory, options.cache_bytes), progress)

    def open(self, location: Location) -> ObjectStoreSource:
        """The source at `location`. Raises what `SourceOpener.open` raises."""
        return self._open(location, location)

    def open_above(self, location: Location) -> ObjectStoreSource:
        """The source at the folder that contains `location`, with the credentials for `location`."""
        return self._open(_above(location), location)

    def open_folder(self, location: Location) -> ObjectFolder:
        return ObjectFolder(self._store(location, location), self._downloader)

    def stop(self) -> None:
        """End the running downloads soon; none starts again."""
        self._downloader.stop()

    def _open(self, location: Location, credited: Location) -> ObjectStoreSource:
        parent = self._store(_above(location), credited) if location.prefix else None
        return ObjectStoreSource(self._store(location, credited), self._downloader, parent)

    def _store(self, location: Location, credited: Location) -> ObjectStore:
        return RenewedStore(
            location.text, lambda: self._credential(credited), lambda credential: open_store(location, credential)
        )

    def _credential(self, location: Location) -> S3Credential | GcsCredential | None:
        return read_cloud_credentials(self._credential_path).credentials_for(location)


def _above(location: Location) -> Location:
    """The folder that contains the prefix of `location`, which is not empty."""
    outer, _, folder = location.prefix.rpartition("/")
    return replace(location, text=location.text.removesuffix(f"/{folder}"), prefix=outer)


def open_store(location: Location, credential: S3Credential | GcsCredential | None) -> S3Store | GcsStore:
    """The store of a cloud location, without asking its storage. Raises what S3Store and GcsStore raise."""
    # Imported here: each SDK costs a second and tens of megabytes, which only servers with such a storage need to pay.
    if location.scheme is Scheme.S3:
        from core.repository.stores.s3.store import S3Store

        return S3Store(location, credential if isinstance(credential, S3Credential) else None)
    from core.repository.stores.gcs.store import GcsStore

    return GcsStore(location, credential if isinstance(credential, GcsCredential) else None)
