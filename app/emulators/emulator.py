"""What the emulators of all platforms do: run a container in a temporary folder, serve the API, report breaches."""

from __future__ import annotations

import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from trident.app.emulators.api import ApiServer
from trident.app.emulators.container import remove_folder
from trident.app.emulators.report import BreachReport, Interrupted
from trident.app.settings.reading import CloudCache
from trident.core.observability.log import print_line


@dataclass(frozen=True, kw_only=True)
class PlatformOptions:
    """`command` is the container's entry point, `environment` the emulator's, and `variables` are the model's.

    `api_port` 0 is any free one. `cache` is for what is fetched from the cloud.
    """

    model: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_port: int = 0
    cache: CloudCache = field(default_factory=CloudCache)


class Probes(Protocol):
    """The probes of a platform."""

    def wait_until_ready(self, is_stopped: Callable[[], bool]) -> bool: ...

    def watch(self, stopped: threading.Event) -> None: ...


class PlatformEmulator(ABC):
    """Runs once. `out` gets messages for the user, `err` each breach as it happens."""

    platform: str
    """Its name, as it stands in the names of folders."""

    def __init__(self, out: TextIO, err: TextIO | None = None) -> None:
        self._out = out
        self.report = BreachReport(err)
        self._on_ready: Callable[[str], None] | None = None

    def run(self, stopped: threading.Event, on_ready: Callable[[str], None] | None = None) -> int:
        """Run until `stopped` is set or the container ends; return the exit status, which is 1 after a failure.

        `on_ready` is called with the API's address. Raises ConfigInvalid for a model that cannot be used.
        """
        self._on_ready = on_ready
        succeeded = True
        with tempfile.TemporaryDirectory(prefix=f"trident-{self.platform}-") as folder:
            try:
                succeeded = self._run_in(Path(folder), stopped)
            except Interrupted:
                pass  # no container was started
            finally:
                for each in Path(folder).iterdir():
                    remove_folder(each)
        self._say(self.report.text().rstrip())
        return 0 if succeeded and not self.report.breaches else 1

    @abstractmethod
    def _run_in(self, folder: Path, stopped: threading.Event) -> bool:
        """Run the container, with its files below `folder`. Returns False for a failure that is no breach."""

    def _serve(self, api: ApiServer, probes: Probes, stopped: threading.Event, ready: str) -> bool:
        """Serve the API from the time the container is ready until `stopped`. False if it does not become ready."""
        if not probes.wait_until_ready(stopped.is_set):
            return False
        with api:
            self._say(f"{ready} is at {api.url}")
            if self._on_ready is not None:
                self._on_ready(api.url)
            probes.watch(stopped)
        return True

    def _say(self, text: str) -> None:
        print_line(text, self._out)


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
