"""What a running server holds: memory, threads and files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.contract.servers.processes import Started, open_files, workers_of


@dataclass(frozen=True)
class Held:
    """The memory in MB, the threads and the open files of a server."""

    memory: int
    threads: int
    files: int

    @staticmethod
    def by(server: Started) -> Held:
        threads = sum(len(os.listdir(f"/proc/{worker}/task")) for worker in workers_of(server))
        return Held(resident_mb(server), threads, open_files(server))

    def is_within(self, before: Held, growth_mb: int) -> bool:
        """Whether it is no more than before, with room for a connection and a thread that is ending."""
        return (
            self.memory <= before.memory + growth_mb
            and self.threads <= before.threads + 2
            and self.files <= before.files + 2
        )


def resident_mb(server: Started) -> int:
    """The memory of all its processes. Shared pages count once, and pages of files not at all: how much of them counts
    depends on what other programs run."""
    return sum(_proportional_kb(worker) for worker in workers_of(server)) >> 10


def _proportional_kb(worker: int) -> int:
    lines = Path(f"/proc/{worker}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
