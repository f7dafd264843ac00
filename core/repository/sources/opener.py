"""Opens the Source that a value of --model-repository names."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.repository.cache.model_cache import ModelCache
from core.repository.download.downloader import Downloader
from core.repository.download.progress import DownloadProgress
from core.repository.location import Location, Scheme, parse_location
from core.repository.sources.any_layout import AnyLayoutSource
from core.repository.sources.local import LocalSource
from core.repository.sources.object_folder import ObjectFolder
from core.repository.sources.object_store import ObjectStoreSource
from core.repository.sources.source import Source
from core.repository.stores.cloud_credentials import GcsCredential, S3Credential, read_cloud_credentials
from core.repository.stores.object_store import ObjectStore
from core.repository.stores.renewed_store import RenewedStore

if TYPE_CHECKING:
    from core.repository.stores.gcs.store import GcsStore
    from core.repository.stores.s3.store import S3Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """`cache_bytes` limits the size of the cache in `cache_directory`; 0 means no limit.

    `credential_path` is the value of TRITON_CLOUD_CREDENTIAL_PATH, empty if it is not set.
    """

    cache_directory: Path
    cache_bytes: int
    credential_path: str = ""


class SourceOpener:
    """Opens the repositories of one server; those in object stores share one cache and one `progress`.

    It makes the cache directory and imports an SDK when the first repository needs them. Any thread.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.progress = DownloadProgress()
        self._options = options
        self._lock = threading.Lock()
        self._downloader: Downloader | None = None

    def open(self, text: str, *, any_layout: bool = False, single_model: str = "") -> Source:
        """The source at `text`, without asking its storage.

        With `any_layout` the place may also hold a single model, called `single_model` if that is not empty, and it
        must hold something. This does not apply to the root of a bucket or a file system, which has no name.

        Raises Unsupported and ConfigInvalid as `parse_location` and `read_cloud_credentials` do;
        RepositoryUnavailable if no entry of the credential file fits or the cache directory is unusable.
        """
        location = parse_location(text)
        source = self._open(location, location)
        if not any_layout:
            return source
        if location.scheme is Scheme.LOCAL:
            path = Path(location.text).absolute()
            if not path.name:
                return source
            return AnyLayoutSource(LocalSource(path.parent), path.name, source, name=single_model, required=True)
        if not location.prefix:
            return source
        parent, folder = self._open(_above(location), location), location.prefix.rpartition("/")[2]
        return AnyLayoutSource(parent, folder, source, name=single_model, required=True)

    def open_folder(self, text: str) -> ObjectFolder:
        """The objects at `text`, an address in an object store, without asking it. Raises what `open` raises."""
        location = parse_location(text)
        return ObjectFolder(self._renewed_store(location, location), self._shared_downloader())

    def _open(self, location: Location, credited: Location) -> Source:
        """The source at `location`, with the credentials for `credited`."""
        if location.scheme is Scheme.LOCAL:
            return LocalSource(Path(location.text))
        parent = self._renewed_store(_above(location), credited) if location.prefix else None
        return ObjectStoreSource(self._renewed_store(location, credited), self._shared_downloader(), parent)

    def _renewed_store(self, location: Location, credited: Location) -> ObjectStore:
        return RenewedStore(
            location.text, lambda: self._credential(credited), lambda credential: open_store(location, credential)
        )

    def stop(self) -> None:
        """End the running downloads soon; none starts again."""
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
