"""The model data of an endpoint in cloud storage: an archive, or all objects below a prefix."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.emulators.common.interrupted import Interrupted
from app.terminal.download_display import drawn
from core.errors import ConfigInvalid, RepositoryUnavailable
from core.repository.download.backoff import GivenUp
from core.repository.location import Scheme, parse_location
from core.repository.sources.opener import SourceOpener

ARCHIVE = ".tar.gz"
_LOOK_S = 0.1


def is_in_cloud(model: str) -> bool:
    """Whether `model` is an address in cloud storage and not a path. Raises ConfigInvalid for a malformed address."""
    return parse_location(model).scheme is not Scheme.LOCAL


@contextmanager
def fetched_model(opener: SourceOpener, address: str, stopped: threading.Event) -> Iterator[Path]:
    """The archive, or the folder, at `address` on the local disk while the context lasts, which nobody may change.

    Draws the progress on a terminal. Raises ConfigInvalid or RepositoryUnavailable if it cannot be fetched, and
    Interrupted soon after `stopped` is set.
    """
    location = parse_location(address)
    above, _, name = location.text.rpartition("/")
    is_archive = bool(location.prefix) and name.endswith(ARCHIVE)
    folder = opener.open_folder(above if is_archive else address)
    with drawn(opener.progress), ended_by(stopped, opener):
        objects = folder.objects(name if is_archive else "", stopped)
        wanted = {path: stored for path, stored in objects.items() if not is_archive or path == name}
        if not wanted:
            opener.open(location.text).check_exists()
            raise ConfigInvalid(
                f"there is nothing in {location.text}", hint=f"name a folder with a model, or an archive *{ARCHIVE}"
            )
        snapshot = folder.fetch(name or location.bucket, wanted)
    try:
        yield snapshot.path / name if is_archive else snapshot.path
    finally:
        snapshot.release()


@contextmanager
def ended_by(stopped: threading.Event, opener: SourceOpener) -> Iterator[None]:
    """End the downloads of `opener` soon after `stopped` is set, with Interrupted."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_S):
            if stopped.is_set():
                opener.stop()
                return

    thread = threading.Thread(target=watch, name="download end", daemon=True)
    thread.start()
    try:
        yield
    except (RepositoryUnavailable, GivenUp):
        if stopped.is_set():
            raise Interrupted from None
        raise
    finally:
        done.set()
        thread.join()
