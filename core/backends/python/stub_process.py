"""A stub process: the process of one instance of a Python model, from its start to its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from core.backends.python.watcher import Watcher
from core.errors import ModelLoadFailed, ServerError
from core.interprocess.descriptors import wait_readable
from core.interprocess.process_end import end_text
from core.interprocess.shared_memory_block import SharedMemoryBlock

_log = logging.getLogger("trident.backends.python")

_PROGRAM = Path(__file__).with_name("stub")
_KEPT_LINES = 8
_LONGEST_LINE = 1 << 16
_NOT_THE_MODEL = (str(_PROGRAM), 'File "<frozen ', "importlib/__init__.py", "Extension modules: ")
# A process that closed its socket is about to end: how it ends is worth this wait.
_LAST_BREATH_S = 1.0

OnLine = Callable[[int, str], None]


class StubProcess:
    """Started by the constructor. Any thread.

    `sock` and `memory` belong to the channel, which closes them; `readiness` is the socket on which the stub answers
    whether its model is ready. The process and its children end when the server ends, however that ends: the kernel
    kills them when the server's end of the lifeline is closed.
    """

    def __init__(
        self,
        name: str,
        interpreter: str,
        variables: Mapping[str, str],
        memory_bytes: int,
        watcher: Watcher,
        on_line: OnLine,
        on_end: Callable[[], None],
    ) -> None:
        """`name` is that of the instance, for whoever lists processes. `on_line` gets level and text of what the
        process prints, on the watcher's thread; so is `on_end` called.

        Raises ModelLoadFailed, and OutOfMemory for the shared memory.
        """
        self._on_line = on_line
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._ending = threading.Lock()
        self._has_ended = False
        self.sock, sock = socket.socketpair()
        self.readiness, readiness = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        try:
            self.memory = SharedMemoryBlock.create(memory_bytes)
            passed = [sock.fileno(), self.memory.descriptor, readiness.fileno(), lifeline.fileno()]
            self._process = subprocess.Popen(
                [interpreter, str(_PROGRAM), *map(str, passed), name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **variables},
                pass_fds=passed,
                start_new_session=True,
            )
        except (OSError, ServerError) as error:
            for each in (self.sock, self.readiness, self._lifeline):
                each.close()
            if isinstance(error, ServerError):
                raise
            reason = os.strerror(error.errno or 0)
            raise ModelLoadFailed(f"the interpreter '{interpreter}' cannot be started: {reason}") from error
        finally:
            for each in (sock, readiness, lifeline):
                each.close()
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        pipes = ((self._process.stdout, logging.INFO), (self._process.stderr, logging.WARNING))
        self._outputs = [_Output(pipe, level, self._line, watcher) for pipe, level in pipes if pipe is not None]
        self._watched = watcher.watch(self._pidfd, on_end)
        self._watched.arm()

    def _line(self, level: int, text: str) -> None:
        # In the traceback of a crash, the frames of imports and of this server's program say nothing of the model.
        if level >= logging.WARNING and not any(each in text for each in _NOT_THE_MODEL):
            self.last_lines.append(text)
        self._on_line(level, text)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds for the end of the process. Returns whether it has ended."""
        # The process stays a zombie until `end`, so that its number remains that of its group.
        return self._has_ended or wait_readable(self._pidfd, timeout_s)

    def end(self, is_ending: bool = False) -> str:
        """Kill the process and its children, and free all. Returns how it ended, "" if it was killed here.

        `is_ending`: it has closed its socket, so that it gets a moment to end by itself.
        """
        with self._ending:
            if self._has_ended:
                return ""
            self._has_ended = True
        has_ended = wait_readable(self._pidfd, _LAST_BREATH_S if is_ending else 0)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._watched.end()
        for output in self._outputs:
            output.close()
        os.close(self._pidfd)
        self.readiness.close()
        self._lifeline.close()
        return end_text(code) if has_ended else ""


def _nobody(level: int, text: str) -> None: ...


class _Output:
    """What a process prints on one of its files, as lines."""

    def __init__(self, pipe: IO[bytes], level: int, on_line: OnLine, watcher: Watcher) -> None:
        self._pipe = pipe
        self._level = level
        self._on_line = on_line
        self._lock = threading.Lock()
        self._begun = b""
        os.set_blocking(pipe.fileno(), False)
        self._watched = watcher.watch(pipe.fileno(), self._readable)
        self._watched.arm()

    def _readable(self) -> None:
        if self._read():
            self._watched.arm()

    def _read(self) -> bool:
        """Pass on the lines that are there. Returns whether more may come."""
        with self._lock:
            try:
                content = os.read(self._pipe.fileno(), _LONGEST_LINE) if not self._pipe.closed else b""
            except BlockingIOError:
                return True
            *lines, self._begun = (self._begun + content).split(b"\n")
            if self._begun and (not content or len(self._begun) >= _LONGEST_LINE):
                lines.append(self._begun)
                self._begun = b""
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._on_line(self._level, text)
            return bool(content)

    def close(self) -> None:
        """Pass on the last lines."""
        self._watched.end()
        while self._read_rest():
            pass
        with self._lock:
            self._pipe.close()
            self._on_line = _nobody  # no cycle: the process has its outputs

    def _read_rest(self) -> bool:
        """As `_read`, but false also if nothing is there: a child of the process may hold the other end."""
        return wait_readable(self._pipe.fileno(), 0) and self._read()
