"""The program of a stub process, `PYTHON FOLDER DESCRIPTOR... NAME`: the main loop around one model.

FOLDER is this one, with the modules that models import; it runs in the model's interpreter, which needs Python 3.9 and
numpy. The descriptors are the socket to the server, the memory shared with it, the socket for questions whether the
model is ready, and the lifeline, on which nothing is ever sent: it ends with the server. The last argument is only for
whoever lists processes.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import signal
import socket
import sys
import threading
from collections import deque
from typing import Any

# Of Linux; the module fcntl has no name for it.
_F_SETSIG = 10


def main() -> None:
    """Serve until the server says STOP or is gone. Does not return."""
    sock, memory, readiness, lifeline = map(int, sys.argv[1:5])
    # As in Triton: a model, or what it imports, may parse the command line, which is not its own.
    sys.argv = [""]
    # What a crash of native code writes is in the server's log, and names the line of the model.
    faulthandler.enable(all_threads=False)
    _die_with_the_server(lifeline)
    status = 0
    try:
        _serve(socket.socket(fileno=sock), memory, socket.socket(fileno=readiness))
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that outlive `finalize` must not keep the process.
    os._exit(status)


def _die_with_the_server(lifeline: int) -> None:
    """Let the kernel kill this process and its children as soon as the server's end of the lifeline is closed.

    No thread and no handler of this process is involved: a model may hold the interpreter for ever.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _serve(sock: socket.socket, memory: int, readiness: socket.socket) -> None:
    from trident_stub import server
    from trident_stub.channel import Channel, ServerCalls, ServerGone
    from trident_stub.host import ModelHost
    from trident_stub.model import ModelFailed
    from trident_stub.wire import EXECUTE, FAILED, START, STARTED, STOP

    channel = Channel(sock, memory)
    calls = ServerCalls(channel)
    frames: deque[tuple[int, int, memoryview]] = deque()

    def keep(kind: int) -> Any:
        return lambda flags, number, content: frames.append((kind, number, content))

    channel.listen({**calls.on_frame, START: keep(START), EXECUTE: keep(EXECUTE), STOP: keep(STOP)})
    server.connect(calls)
    try:
        channel.wait(lambda: bool(frames))
        _, _, content = frames.popleft()
        order = json.loads(bytes(content))
        if order["memory_limit"]:
            import resource

            # Of what the process allocates; memory that it shares with the server is not counted.
            resource.setrlimit(resource.RLIMIT_DATA, (order["memory_limit"],) * 2)
        host = ModelHost(order["args"], order["file"])
        try:
            if "complete" in order:
                result = host.auto_complete(order["complete"])
                channel.send(STARTED, 0, json.dumps({"config": result}).encode())
                return
            if "only_import" in order:
                host.import_only()
                channel.send(STARTED, 0, b"{}")
                return
            host.initialize()
        except ModelFailed as error:
            channel.send(STARTED, 0, json.dumps(str(error)).encode(), FAILED)
            return
        threading.Thread(target=_answer_readiness, args=(readiness, host), daemon=True).start()
        channel.send(STARTED, 0, b"{}")
        while True:
            channel.wait(lambda: bool(frames))
            kind, number, content = frames.popleft()
            if kind == STOP:
                host.finalize()
                return
            calls.execute(host, number, content)
    except ServerGone:
        return


def _answer_readiness(sock: socket.socket, host: Any) -> None:
    """Answer each byte of the server with a line of JSON: [whether the model is ready, why it is not]."""
    while sock.recv(1):
        reason = ""
        try:
            is_ready = host.is_ready()
        except Exception as error:
            is_ready, reason = False, str(error)
        sock.sendall(json.dumps([is_ready, reason]).encode() + b"\n")


if __name__ == "__main__":
    main()
