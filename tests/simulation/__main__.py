"""`python -m tests.simulation`: run schedules of the core, and print the shortest one in which something fails."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from tests.simulation.command import search, shortest, simulated
from tests.simulation.faults import BY_NAME, Fault
from tests.simulation.schedule import SHAPES, Schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="that of the first schedule")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--shape", choices=sorted({*SHAPES}), default="", help="of every schedule")
    parser.add_argument("--fault", action="append", choices=[*BY_NAME, "all"], help="put this fault into the core")
    parser.add_argument("--whole", action="store_true", help="print the first failure, not a shorter one")
    options = parser.parse_args()
    if options.fault == ["all"]:
        return report(list(BY_NAME.values()), options.seed, options.schedules, options.shape)
    faults = [BY_NAME[name] for name in options.fault or ()]
    begin = time.process_time()
    with simulated(change for fault in faults for change in fault.changes()):
        failed = search(options.seed, options.schedules, options.shape)
        if failed is not None:
            print_failure(failed if options.whole else shortest(failed))
            return 1
    seconds = time.process_time() - begin
    print(f"{options.schedules} schedules in {seconds:.1f} s of computing, {options.schedules / seconds:.0f} a second")
    return 0


def report(faults: Sequence[Fault], seed: int, schedules: int, shape: str) -> int:
    """Print after how many seeds each fault is found."""
    missed = 0
    for fault in faults:
        with simulated(fault.changes()):
            failed = search(seed, schedules, shape or fault.shape)
        missed += failed is None
        found = "not found" if failed is None else f"{failed.seed - seed + 1:6} seeds: {failed.problems[0][0]}"
        print(f"{fault.name:<60} {found}", flush=True)
    return missed


def print_failure(failed: Schedule) -> None:
    print(failed.world.text())
    print(f"seed {failed.seed}, size {failed.size}, shape {failed.shape}")
    for name, text, error in failed.problems:
        print(f"{name}: {text}")
        if error is not None:
            traceback.print_exception(error)


if __name__ == "__main__":
    sys.exit(main())
