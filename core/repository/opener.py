"""Opens the repositories of a server by their locations."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trident.core.repository.layouts import AnyLayoutSource
from trident.core.repository.location import Location, Scheme, parse_location
from trident.core.repository.progress import DownloadProgress
from trident.core.repository.sources import LocalSource, Source

if TYPE_CHECKING:
    from trident.core.repository.cloud_sources import Downloader, ObjectFolder
    from trident.core.repository.signature import SigningKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """`cache_bytes` limits the size of the cache in `cache_directory`; 0 means no limit.

    `credential_path` is the value of TRITON_CLOUD_CREDENTIAL_PATH, empty if it is not set. `signature_key` is the file
    of the key that must have signed each model; None if none must be signed.
    """

    cache_directory: Path
    cache_bytes: int
    credential_path: str = ""
    signature_key: Path | None = None


class SourceOpener:
    """Opens the repositories of one server; those in object stores share one cache and one `progress`.

    It makes the cache directory and imports an SDK when the first repository needs them. Any thread.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Raises ConfigInvalid if the key of signatures cannot be used."""
        self._key: SigningKey | None = None
        if options.signature_key is not None:
            from trident.core.repository.signature import SigningKey  # for servers of signed models only

            self._key = SigningKey(options.signature_key)
        self.progress = DownloadProgress()
        self._options = options
        self._lock = threading.Lock()
        self._downloader: Downloader | None = None

    def open(self, text: str, *, any_layout: bool = False, single_model: str = "") -> Source:
        """Return the source at `text`, without asking its storage.

        With `any_layout` the place may also hold a single model, called `single_model` if that is not empty, and it
        must hold something. This does not apply to the root of a bucket or a file system, which has no name.

        Raises Unsupported and ConfigInvalid as `parse_location` and `read_cloud_credentials` do;
        RepositoryUnavailable if no entry of the credential file fits or the cache directory is unusable.
        """
        location = parse_location(text)
        if location.scheme is Scheme.LOCAL:
            local, path = self._signed(LocalSource(Path(location.text))), Path(location.text).absolute()
            if not any_layout or not path.name:
                return local
            return AnyLayoutSource(
                self._signed(LocalSource(path.parent)), path.name, local, name=single_model, required=True
            )
        source = self._in_store(location, location)
        if not any_layout or not location.prefix:
            return source
        outer, _, folder = location.prefix.rpartition("/")
        around = replace(location, text=location.text.removesuffix(f"/{folder}"), prefix=outer)
        return AnyLayoutSource(self._in_store(around, location), folder, source, name=single_model, required=True)

    def _in_store(self, location: Location, credited: Location) -> Source:
        """Return the source at `location`, with the credentials for `credited`."""
        from trident.core.repository.cloud_sources import ObjectStoreSource, renewed_store

        store = renewed_store(location, credited, self._options.credential_path)
        return self._signed(ObjectStoreSource(store, self._shared_downloader()))

    def _signed(self, source: Source) -> Source:
        if self._key is None:
            return source
        from trident.core.repository.signature import SignedSource

        return SignedSource(source, self._key)

    def open_folder(self, text: str) -> ObjectFolder:
        """Return the folder at `text`, in an object store, without asking it. Raises what `open` raises."""
        from trident.core.repository.cloud_sources import ObjectFolder, renewed_store

        location = parse_location(text)
        store = renewed_store(location, location, self._options.credential_path)
        return ObjectFolder(store, self._shared_downloader())

    def stop(self) -> None:
        """End the running downloads soon; none starts again."""
        with self._lock:
            downloader = self._downloader
        if downloader is not None:
            downloader.stop()

    def _shared_downloader(self) -> Downloader:
        from trident.core.repository.cache import ModelCache
        from trident.core.repository.cloud_sources import Downloader  # for servers with an object store only

        with self._lock:
            if self._downloader is None:
                cache = ModelCache(self._options.cache_directory, self._options.cache_bytes)
                self._downloader = Downloader(cache, self.progress)
            return self._downloader
