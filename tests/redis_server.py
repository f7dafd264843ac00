"""A real Redis server, for tests of the response cache that uses one."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.contract.servers.ports import HOST, free_ports
from tests.needed import program
from tests.waiting import until


class RedisServer:
    """`redis-server` on loopback, which keeps nothing on the disk. A context manager.

    Without the program the test is skipped.
    With `tls`, the files of a certificate, of its key and of an authority, it has TLS alone.
    """

    def __init__(self, folder: Path, *options: str, tls: tuple[Path, Path, Path] | None = None) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        plain, secure = ("0", str(self.port)) if tls else (str(self.port), "0")
        self.options = ["--bind", HOST, "--port", plain, "--save", "", "--dir", str(folder), *options]
        if tls is not None:
            names = ("--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file")
            self.options += ["--tls-port", secure]
            self.options += [text for pair in zip(names, map(str, tls), strict=True) for text in pair]

    def __enter__(self) -> RedisServer:
        self._program = program("redis-server", "apt install redis-server")
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        with open(self.folder / "redis.log", "ab") as log:
            self.process = subprocess.Popen([self._program, *self.options], stdout=log, stderr=log)
        try:
            until(self._answers, lambda: (self.folder / "redis.log").read_text())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Halt the server, which then accepts connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        """A connection is enough: it reads the dump that it does not have before it listens."""
        with suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False
