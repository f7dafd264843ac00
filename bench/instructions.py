"""Instructions of the server per request, beside the last release: other work on the machine does not move them.

`python -m bench guard --instructions` counts them, and so does CI. Both servers run under callgrind (`apt install
valgrind`), which executes one thread at a time and many times slower, and answer the same requests one after another.
Waits, contention and the kernel's work are not in the figure; Python models are not either, because valgrind lacks
system calls that their processes need. Source: the manual of callgrind and callgrind_control.
"""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from bench.clients import Load
from bench.machine import tree_members
from bench.servers.server import Server
from trident.tools.bench.client import http_request

LIMIT = 1.03
# Before any release. A change that is worth more instructions moves it to the commit before, and says so.
BASELINE = "213dd21cea3fbaac678b2b5c642be338aa86de16"
# Turns differ by about one percent, by timers and the garbage collector; these only add.
TURNS = 5
REQUESTS = 200
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


def under_callgrind(server: Server, folder: Path) -> Server:
    """The server, which will run under callgrind and count when told to. It writes into `folder`, which is emptied."""
    if shutil.which("valgrind") is None:
        raise SystemExit("`valgrind` is not installed. On Debian and Ubuntu: apt install valgrind")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--trace-children=yes"]
    server.command = [*tool, f"--callgrind-out-file={folder}/%p", *server.command]
    server.environment["PYTHONHASHSEED"] = "0"
    return server


def per_request(load: Load, folder: Path) -> float:
    """The least number per request over HTTP in a few rounds, less what the idle server executes."""
    at = urlsplit(load.url)
    requests = [http_request("POST", at.path, {"Host": at.netloc, **load.headers}, body) for body in load.bodies]
    with socket.create_connection((at.hostname, at.port or 80), timeout=600) as connection:

        def ask() -> None:
            for number in range(REQUESTS):
                # In one piece, because a server reads pieces as they come.
                connection.sendall(requests[number % len(requests)])
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                content = answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{load.url}: {answer.status}: {content[:300].decode(errors='replace')}")

        def counted(work: Callable[[], None]) -> tuple[int, float]:
            """Instructions and seconds."""
            began = time.monotonic()
            _control(load.server, "--instr=on")
            work()
            _control(load.server, "--instr=off")
            seconds = time.monotonic() - began
            _control(load.server, "--dump")
            # Each process writes a file, PID.NUMBER.
            dumps = list(folder.glob("*.*"))
            found = sum(int(match[1]) for dump in dumps for match in TOTALS.finditer(dump.read_text()))
            for dump in dumps:
                dump.unlink()
            return found, seconds

        ask()
        at_rest = min(found / seconds for found, seconds in (counted(lambda: time.sleep(1.0)) for _ in range(2)))
        turns = [counted(ask) for _ in range(TURNS)]
    return min(found - at_rest * seconds for found, seconds in turns) / REQUESTS


def _control(server: Server, command: str) -> None:
    processes = [str(process) for process in tree_members(server.process.pid)]
    subprocess.run(["callgrind_control", command, *processes], check=True, capture_output=True)
