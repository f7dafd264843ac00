"""The processes of a running server: the engine, the front ends, and their memory and files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from tests.contract.servers.session import session_members
from tests.waiting import until

T = TypeVar("T")


class Started(Protocol):
    """A started server. Its main process leads a session."""

    process: subprocess.Popen[bytes]


def workers_of(server: Started) -> list[int]:
    """All processes except the main one, which only supervises them."""
    return [member for member in sorted(session_members(server.process.pid)) if member != server.process.pid]


def engine_of(server: Started) -> int:
    """The process that has the models: the engine, or the single worker."""
    (engine,) = engines_of(server)
    return engine


def engines_of(server: Started) -> list[int]:
    """The processes that have the models, by their ids."""
    return [worker for worker in workers_of(server) if _has_backend(worker)]


def front_ends_of(server: Started) -> list[int]:
    """The processes that answer HTTP: the front ends, or the single worker."""
    workers = workers_of(server)
    return [worker for worker in workers if not _has_backend(worker)] or workers


@contextlib.contextmanager
def stopped(processes: Iterable[int]) -> Iterator[None]:
    """Stop processes with SIGSTOP for the duration of the context."""
    processes = list(processes)
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
            until(partial(_is_stopped, process), f"process {process} does not stop")
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def only(server: Started, front_end: int) -> Iterator[None]:
    """Stop the other front ends, so that new connections go to this one."""
    with stopped(each for each in front_ends_of(server) if each != front_end):
        yield


def from_each(server: Started, call: Callable[[], T]) -> list[T]:
    """The results of a call for each front end. The call must make a new connection."""
    found = []
    for front_end in front_ends_of(server):
        with only(server, front_end):
            found.append(call())
    return found


def _is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def children_of(*parents: int) -> dict[int, str]:
    """The processes that `parents` have started, each with the last word of its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            its_parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            name = (folder / "cmdline").read_bytes().split(b"\0")[-2:][0].decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if its_parent in parents:
            found[int(folder.name)] = name
    return found


def _has_backend(worker: int) -> bool:
    try:
        return "onnxruntime" in Path(f"/proc/{worker}/maps").read_text() or bool(children_of(worker))
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return False


def connected_front_ends(server: Started) -> int:
    """The number of front ends that have mapped the memory shared with the engine."""
    return sum(any("trident-shared-memory" in target for target in _targets(each)) for each in front_ends_of(server))


def open_files(server: Started) -> int:
    """The number of open files of all processes, without the files of counters, which are opened as needed."""
    return sum(not _is_counter(target) for worker in workers_of(server) for target in _targets(worker))


def _is_counter(target: str) -> bool:
    return "/metrics/" in target and target.endswith(".db")


def _targets(process: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(descriptor)


@contextlib.contextmanager
def memory_bound(server: Started, megabytes: int, also: Iterable[int] = ()) -> Iterator[None]:
    """Fail if the resident memory of a process rises by more than `megabytes`, even for a moment.

    `also` are processes of other sessions.
    """
    before = {}
    for worker in [*workers_of(server), *also]:
        Path(f"/proc/{worker}/clear_refs").write_text("5")  # resets the high-water mark
        before[worker] = _status_kb(worker, "VmRSS")
    yield
    grown = {worker: (_status_kb(worker, "VmHWM") - size) // 1024 for worker, size in before.items()}
    assert all(size <= megabytes for size in grown.values()), f"MB more at the peak, by process: {grown}"


def _status_kb(worker: int, field: str) -> int:
    lines = Path(f"/proc/{worker}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


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
        """True if usage is as before, with an allowance for a connection and a thread that are ending."""
        return (
            self.memory <= before.memory + growth_mb
            and self.threads <= before.threads + 2
            and self.files <= before.files + 2
        )


def resident_mb(server: Started) -> int:
    """The memory of all its processes. Shared pages count once, and pages of files not at all: how much of them counts
    depends on what other programs run."""
    return sum(proportional_kb(worker) for worker in workers_of(server)) >> 10


def proportional_kb(worker: int) -> int:
    lines = Path(f"/proc/{worker}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
