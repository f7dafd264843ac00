"""What the options of both platforms' emulators have in common, and their life."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from app.settings.command_line import CommandLine
from app.settings.option import BadOption, Option
from app.settings.option_types import BadValue, Kind

# -P: a folder `app` where the person happens to be is none of ours.
CONTAINER_COMMAND = (sys.executable, "-P", "-m", "app")


def _variable(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise BadValue(f"--env takes NAME=VALUE, not '{text}'")
    return text


VARIABLE = Kind("NAME=VALUE", _variable)


def own_option(flag: str, kind: Kind[Any], default: Any, help: str) -> Option:
    """An option of an emulator; one whose default is () may be given again and again."""
    return Option(
        flag=flag, kind=kind, help=help, section="", variable="", default=default, repeatable=default == (), own=True
    )


def read_values(accepted: Sequence[Option], arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The value of each option by its flag, given or not, and the arguments that are none. Raises BadOption."""
    values = {each.flag: each.default for each in accepted}
    given, others = CommandLine(accepted).split(arguments)
    for option, text in given:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(f"--{option.flag}", str(error)) from None
        values[option.flag] = (*values[option.flag], value) if option.repeatable else value
    return values, others


def variables_of(texts: Sequence[str]) -> dict[str, str]:
    """The variables of `VARIABLE` texts by name."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and the end of the terminal set, for as long as this lasts. Main thread."""
    stopped = threading.Event()
    # A handler runs between any two steps of the main thread: it must not set the event itself, whose lock that thread
    # may hold at this very moment. This queue may be put into from everywhere.
    asked: SimpleQueue[None] = SimpleQueue()

    def wait_for_signal() -> None:
        asked.get()
        stopped.set()

    thread = threading.Thread(target=wait_for_signal, name="stop signals", daemon=True)
    thread.start()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # what nohup asks for
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: asked.put(None)) for number in numbers}
    try:
        yield stopped
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        asked.put(None)
        thread.join()
