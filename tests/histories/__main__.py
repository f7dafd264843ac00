"""python -m tests.histories: ask a server of a shape, and check every answer."""

from __future__ import annotations

import argparse
import sys
import time

from tests.histories.faults import SHAPES
from tests.histories.kinds import BY_KIND
from tests.histories.run import HARM, TRANSPORTS, Setting, run
from tests.histories.shrinking import command_of, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--shape", choices=tuple(SHAPES), default="one-process")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--answers", type=int, default=0, help="the number of answers, instead of the seconds")
    parser.add_argument("--processes", type=int, default=2, help="processes of clients")
    parser.add_argument("--clients", type=int, default=4, help="clients in each")
    parser.add_argument("--rush", action="store_true", help="one client of each process asks for all that it gets")
    for name, all_of_them in (("kinds", BY_KIND), ("transports", TRANSPORTS), ("faults", HARM)):
        text = f"separated by commas: {', '.join(all_of_them)}"
        parser.add_argument(f"--{name}", type=lambda given: tuple(filter(None, given.split(","))), help=text)
    parser.add_argument("--shrink", action="store_true", help="after a failure look for a smaller run that fails")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    is_shrunk = given.pop("shrink")
    setting = Setting(**given)
    print(f"seed {setting.seed}, {setting.shape}", flush=True)
    result = run(setting)
    print(result, flush=True)
    if result.failure and is_shrunk:
        setting, result = shrink(setting, result)
        print(f"the smallest: {command_of(setting)}\n{result}")
    return 1 if result.failure else 0


if __name__ == "__main__":
    sys.exit(main())
