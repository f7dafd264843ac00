"""Find a smaller run that fails in the same way as a given one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tests.histories.kinds import BY_KIND
from tests.histories.run import Result, Setting, run

# A run that failed late is not repeated: it would take as long each time.
LONGEST_S = 90.0


def shrink(setting: Setting, result: Result, limit_s: float = 600.0) -> tuple[Setting, Result]:
    """The smallest run found in the time, with its result: fewer models, transports, faults and clients.

    Processes and threads of the system are not the same twice, so each smaller run is tried twice.
    """
    end = time.monotonic() + limit_s
    is_smaller = True
    while is_smaller and time.monotonic() < end:
        is_smaller = False
        for smaller in _smaller(setting, result):
            trial = replace(smaller, seconds=min(LONGEST_S, 2 * result.seconds + 5), answers=0)
            found = next((each for each in (run(trial) for _ in range(2)) if each.verdict == result.verdict), None)
            if found is not None:
                print(f"fails, too, after {found.seconds:.0f} s: {command_of(trial)}", flush=True)
                setting, result, is_smaller = trial, found, True
                break
            if time.monotonic() > end:
                break
    return setting, result


def _smaller(setting: Setting, result: Result) -> Iterator[Setting]:
    """The largest steps first."""
    if result.kind in BY_KIND and len(setting.kinds) > 1:
        needed = tuple(dict.fromkeys((result.kind, *BY_KIND[result.kind].depends)))
        if needed != setting.kinds:
            yield replace(setting, kinds=needed)
        yield replace(setting, kinds=(result.kind,))
    if result.transport in setting.transports and len(setting.transports) > 1:
        yield replace(setting, transports=(result.transport,))
    if setting.faults:
        yield replace(setting, faults=())
        for fault in setting.faults:
            yield replace(setting, faults=tuple(each for each in setting.faults if each != fault))
    if setting.rush:
        yield replace(setting, rush=False)
    if setting.processes > 1:
        yield replace(setting, processes=1)
    if setting.clients > 1:
        yield replace(setting, clients=setting.clients // 2)


def command_of(setting: Setting) -> str:
    """The command that starts this run."""
    words = ["python -m tests.histories", f"--seed {setting.seed} --shape {setting.shape}"]
    words.append(f"--seconds {setting.seconds:.0f} --processes {setting.processes} --clients {setting.clients}")
    default = Setting(0, setting.shape, 0)
    for name in ("kinds", "transports", "faults"):
        if (value := getattr(setting, name)) != getattr(default, name):
            words.append(f'--{name} "{",".join(value)}"')
    return " ".join([*words, *(["--rush"] if setting.rush else [])])
