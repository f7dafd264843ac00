"""`trident emulate`: serve a model in a container of this machine as a cloud platform would."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from trident.adapters.common.options import BadOption, BadValue, Kind, Option
from trident.app.process.environment import process_environment
from trident.core.observability.log import print_line

_PLATFORMS = ("sagemaker", "vertex", "azureml")


def emulate(arguments: Sequence[str]) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP, or the end of a job. The exit status is 1 if a limit of the platform was
    broken or a part of the job has failed, else 0.

    Raises BadOption, and ConfigInvalid for a model that cannot be used. Call it from the main thread.
    """
    # Each platform's modules are imported only for that platform.
    platform = import_module(f"trident.app.commands.emulate_{platform_of(arguments)}")
    options = platform.read_options(arguments, process_environment())
    emulator = platform.Emulator(options, sys.stdout, sys.stderr)
    with stop_signals() as stopped:
        status: int = emulator.run(stopped, lambda url: print_line(platform.example(options, url), sys.stdout))
        return status


def platform_of(arguments: Sequence[str]) -> str:
    """The first argument that is a platform's name; options may come before it. Raises BadOption."""
    for argument in arguments:
        if argument in _PLATFORMS:
            return argument
    raise BadOption(f"a platform must be named: {' or '.join(f'trident emulate {name} MODEL' for name in _PLATFORMS)}")


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Give an event that SIGINT, SIGTERM and SIGHUP set while the context lasts. Main thread."""
    stopped = threading.Event()
    # A signal handler interrupts the main thread at any point, which may hold the event's lock: setting the event there
    # could deadlock. `SimpleQueue.put` is safe in a handler.
    asked: SimpleQueue[None] = SimpleQueue()

    def wait_for_signal() -> None:
        asked.get()
        stopped.set()

    thread = threading.Thread(target=wait_for_signal, name="stop signals", daemon=True)
    thread.start()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: asked.put(None)) for number in numbers}
    try:
        yield stopped
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        asked.put(None)
        thread.join()


# -P keeps a folder `app` in the working directory from being imported.
CONTAINER_COMMAND = (sys.executable, "-P", "-m", "trident.app")


def _variable(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise BadValue(f"--env takes NAME=VALUE, not '{text}'")
    return text


VARIABLE = Kind("NAME=VALUE", _variable)


def own_option(flag: str, kind: Kind[Any], default: Any, help: str) -> Option:
    """An option of an emulator; it is repeatable if its default is ()."""
    return Option.of_command(flag, kind, default, help, repeatable=default == ())


def variables_of(texts: Sequence[str]) -> dict[str, str]:
    """The values by name of texts of kind `VARIABLE`."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before `--`, and those after it, which are the container's."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])
