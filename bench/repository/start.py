"""A big model from an emulator of S3: the first start, which downloads it, and the second, which must not.

Every round measures all contenders in turn, so that they share the machine's fast and slow moments: the SDK's download,
this project's download, a session, a start with an empty cache, with a full cache, from a local folder, and without a
model.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.repository.emulators import (
    BUCKET,
    EMULATORS,
    ENVIRONMENT,
    MOTO_FILE_MEGABYTES,
    Emulator,
    file_megabytes,
    is_listing,
)
from bench.repository.models import build_big
from bench.repository.servers import RepositoryServer
from bench.results import Figures
from tests.project import ROOT

MODEL = "big"
CHILD_LIMIT_S = 1200.0
LIMITS = {
    "files": "`files` serves files with sendfile: what limits it are the two clients, which share the cores with it.",
    "moto": f"`moto` is slow itself, and copies whole objects: the weights are in files of {MOTO_FILE_MEGABYTES} MB "
    "there, and the ratio of the two downloads says little.",
}


@dataclass(slots=True)
class StartRounds:
    """The figures of each round: rates in bytes/s, times in seconds."""

    sdk_rate: list[float] = field(default_factory=list)
    own_rate: list[float] = field(default_factory=list)
    own_download: list[float] = field(default_factory=list)
    session: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    local: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    listings: list[float] = field(default_factory=list)
    object_requests: list[float] = field(default_factory=list)


class StartCase:
    """One emulator with one model of `megabytes`; it writes everything under `build`."""

    def __init__(self, kind: str, build: Path, megabytes: int) -> None:
        self.kind = kind
        self.build = build
        file_size = file_megabytes(kind, megabytes)
        self.storage = build / f"big-{megabytes}-in-{file_size}"
        self.graph = build_big(self.storage / BUCKET / MODEL, megabytes=megabytes, file_megabytes=file_size)
        self.cache = build / "cache"
        self.rounds = StartRounds()

    def run(self, rounds: int) -> None:
        empty = self.build / "empty"
        empty.mkdir(exist_ok=True)
        with EMULATORS[self.kind](self.storage, self.build / f"{self.kind}.log") as emulator:
            for number in range(rounds):
                print(f"{self.kind}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
                self._downloads(emulator)
                self.rounds.session.append(self._child(["session", str(self.graph)])[0])
                self._starts(emulator, empty)
        shutil.rmtree(self.cache, ignore_errors=True)

    def _downloads(self, emulator: Emulator) -> None:
        self._settle()
        seconds, size = self._child(["sdk", emulator.endpoint, MODEL, str(self.cache)])
        self.rounds.sdk_rate.append(size / seconds)
        self._settle()
        seconds, size = self._child(["trident", emulator.repository, MODEL, str(self.cache)])
        self.rounds.own_rate.append(size / seconds)
        self.rounds.own_download.append(seconds)

    def _starts(self, emulator: Emulator, empty: Path) -> None:
        self._settle()
        self.rounds.cold.append(self._ready_seconds(emulator.repository))
        before = len(emulator.requests())
        self.rounds.again.append(self._ready_seconds(emulator.repository))
        asked = emulator.requests()[before:]
        listings = sum(map(is_listing, asked))
        self.rounds.listings.append(listings)
        self.rounds.object_requests.append(len(asked) - listings)
        self.rounds.local.append(self._ready_seconds(str(self.storage / BUCKET)))
        self.rounds.empty.append(self._ready_seconds(str(empty)))

    def _ready_seconds(self, repository: str) -> float:
        log = self.build / "trident.log"
        with RepositoryServer("trident", repository, log, f"--model-cache-directory={self.cache}") as server:
            return server.ready_seconds

    def _settle(self) -> None:
        """Delete all downloads, and wait until the disk has written what the last contender left behind."""
        shutil.rmtree(self.cache, ignore_errors=True)
        self.cache.mkdir(mode=0o700)
        os.sync()

    def _child(self, arguments: list[str]) -> tuple[float, int]:
        """The seconds and bytes that a process of bench.repository.download prints."""
        finished = subprocess.run(
            [sys.executable, "-m", "bench.repository.download", *arguments],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            check=True,
            timeout=CHILD_LIMIT_S,
        )
        answer = json.loads(finished.stdout)
        return answer["seconds"], answer["bytes"]


def measure_start(results: Figures, build: Path, *, kind: str, megabytes: int, rounds: int) -> None:
    """Measure both starts from one emulator."""
    case = StartCase(kind, build, megabytes)
    began = time.monotonic()
    case.run(rounds)
    print(f"{kind}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    results.remarks.append(LIMITS[kind])
    _note_cold(results, case.rounds, f"cold, {kind}")
    _note_again(results, case.rounds, f"second, {kind}")


def _note_cold(results: Figures, seen: StartRounds, title: str) -> None:
    sdk = results.note(title, "download by the SDK", "MB/s", [rate / 1e6 for rate in seen.sdk_rate])
    own = results.note(title, "download by Trident, verified", "MB/s", [rate / 1e6 for rate in seen.own_rate])
    download = results.note(title, "download by Trident, verified", "s", seen.own_download)
    session = results.note(title, "session of the downloaded model", "s", seen.session)
    empty = results.note(title, "start to ready, no model", "s", seen.empty)
    cold = results.note(title, "start to ready, empty cache", "s", seen.cold)
    parts = download.median + session.median
    with_start = cold.median / (empty.median + parts)
    results.note(title, "ready over (start without a model + download + session)", "ratio", [with_start])
    results.at_least(title, "download rate over the SDK's", 0.8, own.median / sdk.median)
    results.at_most(title, "ready over (download + session)", 1.2, cold.median / parts)


def _note_again(results: Figures, seen: StartRounds, title: str) -> None:
    again = results.note(title, "start to ready, full cache", "s", seen.again)
    local = results.note(title, "start to ready, local repository", "s", seen.local)
    listings = results.note(title, "listings", "requests", seen.listings)
    others = results.note(title, "requests for objects", "requests", seen.object_requests)
    results.at_most(title, "ready over the local repository's", 1.1, again.median / local.median)
    results.at_most(title, "listings, at most", 1, max(listings.values))
    results.at_most(title, "requests for objects, at most", 0, max(others.values))
