"""A model repository in an object store: listed there, used from a cache on the local disk.

Names in the store are not trusted. A model whose name cannot be a folder's is left out of `scan` and logged. A model
with a file whose name cannot be a file's fails when it is fetched; the other models are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Event, Lock
from typing import TYPE_CHECKING

from trident.core.config.platforms import unused_in_hub_folder
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cache import ModelCache, Snapshot
from trident.core.repository.download import Downloader
from trident.core.repository.location import Location, Scheme
from trident.core.repository.progress import DownloadProgress
from trident.core.repository.repository import ModelDirectory, version_of
from trident.core.repository.sources import Fetched, SourceFile, SourceOptions, UsableNames
from trident.core.repository.stores.object_store import (
    AzureCredential,
    CloudCredential,
    GcsCredential,
    ObjectStore,
    RenewedStore,
    S3Credential,
    StoredObject,
    name_problem,
    paths_problem,
    read_cloud_credentials,
    without_markers,
)

if TYPE_CHECKING:
    from trident.core.repository.stores.azure import AzureStore
    from trident.core.repository.stores.gcs import GcsStore
    from trident.core.repository.stores.s3 import S3Store


class ObjectStoreSource:
    """The Source of a prefix in an object store."""

    def __init__(self, store: ObjectStore, downloader: Downloader) -> None:
        self.location = store.location
        self._store = store
        self._downloader = downloader
        self._lock = Lock()
        # The last listing by model and path: it has the digests, which a SourceFile does not have.
        self._listed: dict[str, dict[str, StoredObject]] = {}
        self._names = UsableNames(self.location, name_problem)

    def models(self) -> Sequence[str]:
        listing = f"list {self.location}"
        return self._names.of(self._downloader.backoff.call(lambda: set(self._store.folders()), listing, Event()))

    def check_exists(self) -> None:
        if not self._list(""):
            raise RepositoryUnavailable(
                f"there is nothing in {self.location}", hint="check how the bucket and the prefix are spelled"
            )

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        by_model: dict[str, dict[str, StoredObject]] = {}
        for stored in self._list(""):
            model, slash, path = stored.key.partition("/")
            if slash:
                by_model.setdefault(model, {})[path] = stored
        usable = {model: without_markers(by_model[model]) for model in self._names.of(by_model)}
        with self._lock:
            self._listed = usable
        return {model: _files(listed) for model, listed in usable.items()}

    def files(self, model: str) -> Sequence[SourceFile] | None:
        if name_problem(model):
            return None
        prefix = f"{model}/"
        found = {stored.key.removeprefix(prefix): stored for stored in self._list(prefix)}
        listed = without_markers(found)
        with self._lock:
            if found:
                self._listed[model] = listed
            else:
                self._listed.pop(model, None)
        return _files(listed) if found else None

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        problem = name_problem(model)
        problem = f"'{model}' has {problem}" if problem else paths_problem([file.path for file in files])
        if problem:
            raise RepositoryUnavailable(f"model '{model}' in {self.location} cannot be stored: {problem}", model=model)
        unused = unused_in_hub_folder({file.path for file in files})
        wanted = [file for file in files if version_of(file.path) in (None, version) and file.path not in unused]
        snapshot = self._downloader.fetch(self._store, model, version, self._stored(model, wanted))
        return Fetched(ModelDirectory(model, snapshot.path, _folders(files)), snapshot.release)

    def _stored(self, model: str, files: Iterable[SourceFile]) -> dict[str, StoredObject]:
        """Return the listed objects of `files`. Raises RepositoryUnavailable if it lacks one."""
        with self._lock:
            listed = self._listed.get(model, {})
        contents = {}
        for file in files:
            stored = listed.get(file.path)
            if stored is None or (stored.tag, stored.size) != (file.tag, file.size):
                raise RepositoryUnavailable(
                    f"'{file.path}' of model '{model}' in {self.location} has changed since it was listed",
                    hint="list the repository again",
                    model=model,
                )
            contents[file.path] = stored
        return contents

    def _list(self, prefix: str) -> list[StoredObject]:
        listing = f"list {self.location}"
        return self._downloader.backoff.call(lambda: list(self._store.list(prefix)), listing, Event())


def _files(listed: Mapping[str, StoredObject]) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(path, stored.size, stored.tag) for path, stored in sorted(listed.items()))


def _folders(files: Iterable[SourceFile]) -> dict[str, frozenset[str]]:
    """Every folder of the model, with the names in it."""
    found: dict[str, set[str]] = {}
    for file in files:
        folder, slash, rest = file.path.partition("/")
        if slash:
            found.setdefault(folder, set()).update(rest.split("/")[:1] if rest else [])
    return {folder: frozenset(names) for folder, names in found.items()}


class ObjectFolder:
    """All objects of `store`. Any thread, several at once. Methods block, and raise RepositoryUnavailable."""

    def __init__(self, store: ObjectStore, downloader: Downloader) -> None:
        self.location = store.location
        self._store = store
        self._downloader = downloader

    def objects(self, prefix: str = "", stop: Event | None = None) -> dict[str, StoredObject]:
        """The objects whose path in the folder begins with `prefix`, by path.

        Raises GivenUp if `stop` is set while it waits for another attempt.
        """
        listing = f"list {self.location}"
        found = self._downloader.backoff.call(lambda: list(self._store.list(prefix)), listing, stop or Event())
        return without_markers({stored.key: stored for stored in found})

    def fetch(self, name: str, objects: Mapping[str, StoredObject]) -> Snapshot:
        """A folder called `name` with `objects`, from `objects`, held until its `release`."""
        problem = paths_problem(list(objects))
        if problem:
            raise RepositoryUnavailable(f"the objects in {self.location} cannot be stored: {problem}")
        return self._downloader.fetch(self._store, name, None, objects)


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
        return ObjectStoreSource(self._store(location, credited), self._downloader)

    def _store(self, location: Location, credited: Location) -> ObjectStore:
        return RenewedStore(
            location.text, lambda: self._credential(credited), lambda credential: open_store(location, credential)
        )

    def _credential(self, location: Location) -> CloudCredential | None:
        return read_cloud_credentials(self._credential_path).credentials_for(location)


def _above(location: Location) -> Location:
    """The folder that contains the prefix of `location`, which is not empty."""
    outer, _, folder = location.prefix.rpartition("/")
    return replace(location, text=location.text.removesuffix(f"/{folder}"), prefix=outer)


def lacks_azure(location: Location, package: str | None) -> RepositoryUnavailable:
    """The error for a location in Azure where its SDK is not installed."""
    return RepositoryUnavailable(
        f"as:// file-system not supported: {location.text} needs the package {package}",
        hint="pip install 'trident-inference[azure]'",
    )


def open_store(location: Location, credential: CloudCredential | None) -> S3Store | GcsStore | AzureStore:
    """The store of a cloud location, without asking its storage. Raises what the stores raise."""
    # Imported here: each SDK costs a second and tens of megabytes, which only servers with such a storage need to pay.
    if location.scheme is Scheme.S3:
        from trident.core.repository.stores.s3 import S3Store

        return S3Store(location, credential if isinstance(credential, S3Credential) else None)
    if location.scheme is Scheme.AS:
        try:
            from trident.core.repository.stores.azure import AzureStore
        except ImportError as error:
            raise lacks_azure(location, error.name) from None
        return AzureStore(location, credential if isinstance(credential, AzureCredential) else None)
    from trident.core.repository.stores.gcs import GcsStore

    return GcsStore(location, credential if isinstance(credential, GcsCredential) else None)
