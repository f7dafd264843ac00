"""What tracing costs: servers of this checkout with other settings run at the same time and are asked by turns.

    python -m bench tracing                  about two minutes
    python -m bench tracing --pairs 200      narrower intervals

`off` can trace and does not; `1 in 1,000` and `all` write Triton's file. A ratio is a server's figure over that of
`off`: the median of the pairs' ratios, with the 95 % interval of that median in brackets. The last line is what a
request pays while nothing is traced: the looks at the gate, and the fields that say that it is not traced, measured
in a loop. How a server without any of it does shows the comparison with an older checkout (`python -m bench compare`).
"""

from __future__ import annotations

import argparse
import statistics
import timeit
from collections.abc import Sequence
from contextlib import ExitStack

from bench import wrk
from bench.cases import CASES
from bench.machine import LoadWatch
from bench.models import served
from bench.plain import check_answer
from bench.results import number, positive, table
from bench.servers.server import Server, trident
from bench.turns import HttpLoad, Ratio, Turns
from tests.project import ROOT
from trident.core.observability.tracing.trace_gate import TraceGate

BUILD = ROOT / "build" / "bench" / "tracing"
OFF = "off"
SETTINGS = {OFF: ("level=OFF",), "1 in 1,000": ("level=TIMESTAMPS", "rate=1000"), "all": ("level=TIMESTAMPS", "rate=1")}
CONNECTIONS = 16
LOOPS = 200_000
# The connection's two, the response's three, the view's two, the version's one; a request, its caller and a response
# have a field each.
LOOKS, FIELDS = 8, 3


class _Slots:
    """An object as those of a request are."""

    __slots__ = ("field", "gate")

    def __init__(self) -> None:
        self.gate = TraceGate()
        self.field = 0


def hook_ns() -> float:
    """What the looks and the fields of one request take, in nanoseconds: the best of several loops."""
    steps = "\n".join(["if slots.gate.is_open: pass"] * LOOKS + ["slots.field = 0"] * FIELDS)
    full, empty = (
        min(timeit.repeat(code, number=LOOPS, repeat=15, globals={"slots": _Slots()})) for code in (steps, "pass")
    )
    return (full - empty) / LOOPS * 1e9


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench tracing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=positive, default=100, help="pairs of turns")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of a turn")
    options = parser.parse_args(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    served.build(models)
    case = next(case for case in CASES if case.key == "a-binary")
    script = wrk.write_script(BUILD / "a-binary.lua", *case.body())
    watch = LoadWatch()
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for index, (name, settings) in enumerate(SETTINGS.items()):
            server = trident(models, BUILD / f"{index}.log")
            server.name = name
            server.command += [f"--trace-config=triton,file={BUILD / f'{index}.trace'}"]
            server.command += [f"--trace-config={setting}" for setting in settings]
            servers[name] = stack.enter_context(server)
            check_answer(server, case, models)
        loads = {name: HttpLoad(server, case.model, server.url(case.path), script) for name, server in servers.items()}
        with Turns(loads, connections=CONNECTIONS, seconds=options.turn) as turns:
            rounds = [turns.round(index) for index in range(options.pairs)]
    rows = []
    for name in SETTINGS:
        rates, base_rates = ([turn[which].requests_per_second for turn in rounds] for which in (name, OFF))
        cpu, base_cpu = ([turn[which].cpu_us for turn in rounds] for which in (name, OFF))
        ratios = [str(Ratio.of(rates, base_rates)), str(Ratio.of(cpu, base_cpu))]
        rows.append([name, number(statistics.median(rates)), ratios[0], number(statistics.median(cpu)), ratios[1]])
    header = ["traced", "requests/s", "ratio", "CPU µs/request", "ratio"]
    print(table(header, rows))
    print(f"\n{case.title}, {CONNECTIONS} connections, {options.pairs} rounds of turns of {options.turn:g} s.")
    print(f"Meanwhile {watch.seen().text()}.")
    print(f"\nWhat a request pays while nothing is traced: {hook_ns():.0f} ns.")
