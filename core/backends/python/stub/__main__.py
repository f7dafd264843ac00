"""The program of a stub process, `PYTHON FOLDER DESCRIPTOR... NAME`: the main loop around one model.

FOLDER is this one, with the modules that models import; it runs in the model's interpreter, which needs Python 3.9 and
numpy. The descriptors are the socket to the server, the memory shared with it, the socket for questions whether the
model is ready, and the lifeline, on which nothing is ever sent: it ends with the server. The last argument is only for
whoever lists processes.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from typing import Any

# Time for threads that still run after `finalize`.
_LAST_SECONDS = 5.0
_PAUSE_S = 1.0
# Of Linux; the module fcntl has no name for it.
_F_SETSIG = 10


def main() -> None:
    """Serve until the server says STOP or is gone. Does not return."""
    sock, memory, readiness, lifeline = map(int, sys.argv[1:5])
    # As in Triton: a model, or what it imports, may parse the command line, which is not its own.
    sys.argv = [""]
    # OpenVINO's import sends usage to its maker, unless this package is missing.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    # The output of a crash of native code is in the server's log, and names the line of the model.
    faulthandler.enable(all_threads=False)
    _die_with_the_server(lifeline)
    _leave_signals_to_the_server()
    status = 0
    try:
        _serve(socket.socket(fileno=sock), memory, socket.socket(fileno=readiness))
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    _watch_the_end(status)
    sys.exit(status)


def _watch_the_end(status: int) -> None:
    """End the process soon, as any program of Python ends: but threads that never end must not keep it.

    Python waits for threads first, and calls the functions of `atexit` then.
    """
    threads_ended = threading.Event()
    atexit.register(threads_ended.set)  # the last one comes first

    def watch() -> None:
        if not threads_ended.wait(_LAST_SECONDS):
            main, own = threading.main_thread(), threading.current_thread()
            left = [each.name for each in threading.enumerate() if not each.daemon and each not in (main, own)]
            print(f"these threads did not end: {', '.join(left)}", file=sys.stderr)
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    threading.Thread(target=watch, daemon=True).start()


def _die_with_the_server(lifeline: int) -> None:
    """Let the kernel kill this process and its children as soon as the server's end of the lifeline is closed.

    No thread and no handler of this process is involved: a model may hold the interpreter for ever.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    closed = select.poll()
    closed.register(lifeline, 0)
    if closed.poll(0):  # the server died before: no signal comes
        sys.exit(1)


def _leave_signals_to_the_server() -> None:
    """Outlive the signals that a service manager sends to all processes: the server lets models finish.

    As in Triton; but processes that the model makes end by them, as those of other programs do. They have a handler of
    this process only until they run, and one that the server gave this process, SIG_IGN, for good.
    """
    signals: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    thread = threading.local()

    def ignore(number: int, frame: Any) -> None: ...

    def block() -> None:
        thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, thread.mask)

    def restore() -> None:
        for number, handler in signals.items():
            if signal.getsignal(number) is ignore:
                signal.signal(number, handler)
        unblock()

    for number in signals:
        signal.signal(number, ignore)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)


def _serve(sock: socket.socket, memory: int, readiness: socket.socket) -> None:
    from trident_stub import server
    from trident_stub.channel import Channel, ServerCalls, ServerGone
    from trident_stub.host import ModelHost
    from trident_stub.model import ModelFailed
    from trident_stub.wire import FAILED, START, STARTED, STOP, from_json, to_json

    channel = Channel(sock, memory)
    orders: deque[Any] = deque()
    # The number and the requests of each batch; None to stop.
    batches: deque[tuple[int, Any] | None] = deque()
    calls = ServerCalls(channel, lambda number, requests: batches.append((number, requests)))
    channel.listen(
        {
            **calls.on_frame,
            START: lambda flags, number, content: orders.append(from_json(content)),
            STOP: lambda flags, number, content: batches.append(None),
        }
    )
    server.connect(calls)
    try:
        channel.wait(lambda: bool(orders))
        order = orders.popleft()
        if order["memory_limit"]:
            import resource

            # Of the process's own allocations, without memory shared with the server.
            resource.setrlimit(resource.RLIMIT_DATA, (order["memory_limit"],) * 2)
        host = ModelHost(order["args"], order["file"])
        try:
            if "complete" in order:
                result = host.auto_complete(order["complete"])
                channel.send(STARTED, 0, to_json({"config": result}))
                return
            only_import = order.get("trial") == "import"
            host.initialize(only_import)
            if "trial" in order:
                host.require_execute()
            if only_import:
                channel.send(STARTED, 0, b"{}")
                return
        except ModelFailed as error:
            channel.send(STARTED, 0, to_json(str(error)), FAILED)
            return
        threading.Thread(target=_answer_readiness, args=(readiness, host), daemon=True).start()
        channel.send(STARTED, 0, b"{}")
        while True:
            pause_s = _PAUSE_S
            while not channel.wait(lambda: bool(batches), pause_s if calls.has_open else None):
                # A sender that the model has dropped may wait for the collector, which comes only when something runs.
                gc.collect()
                pause_s *= 2
            batch = batches.popleft()
            if batch is None:
                host.finalize()
                return
            calls.execute(host, *batch)
            del batch
    except ServerGone:
        raise SystemExit(1) from None


def _answer_readiness(sock: socket.socket, host: Any) -> None:
    """Answer each number of the server with a line of JSON: [the number, whether the model is ready, why it is not]."""
    from trident_stub.wire import QUESTION, to_json

    while len(question := sock.recv(QUESTION.size)) == QUESTION.size:
        (number,) = QUESTION.unpack(question)
        reason = ""
        try:
            is_ready = host.is_ready()
        except Exception as error:
            is_ready, reason = False, str(error)
        sock.sendall(to_json([number, is_ready, reason]) + b"\n")


if __name__ == "__main__":
    main()
