"""The cost of /invocations beside plain v2 infer of the same model: both routes of one process, by turns."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path

import numpy as np

from bench import plain as measure
from bench import wrk
from bench.cases import CASES, Case
from bench.models.served import SHIPPED
from bench.results import Figures
from bench.sagemaker.servers import BesidePlain, Client, invocation, invoked
from bench.turns import HttpLoad, Turn, Turns

MODEL_CASES = ("a-binary", "a-json")
CONNECTIONS = (16, 64)
INVOCATIONS = "/invocations"
INFER = "v2 infer"


def serve_simple(build: Path) -> BesidePlain:
    """A server, not yet started, whose only model adds and subtracts; /invocations runs it."""
    repository = build / "one"
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(SHIPPED / "simple", repository / "simple")
    return BesidePlain(repository, build / "one.log")


def measure_invocations(results: Figures, build: Path, *, rounds: int, seconds: float) -> None:
    """Measure `rounds` pairs of turns of `seconds`, for each kind of body and number of connections."""
    cases = [case for case in CASES if case.key in MODEL_CASES]
    with serve_simple(build) as server:
        for case in cases:
            _check(server, case, build / "one")
        for case, connections in itertools.product(cases, CONNECTIONS):
            title = f"{'binary' if case.binary else 'JSON'}, {connections} connections"
            print(f"{title}: {rounds} pairs", file=sys.stderr, flush=True)
            loads = {
                INVOCATIONS: HttpLoad(
                    server,
                    case.model,
                    server.invocations_url,
                    wrk.write_script(build / f"{case.key}-invocations.lua", *invocation(case)),
                ),
                INFER: HttpLoad(
                    server,
                    case.model,
                    server.url(case.path),
                    wrk.write_script(build / f"{case.key}-infer.lua", *case.body()),
                ),
            }
            turns = Turns(loads, connections=connections, seconds=seconds)
            with turns:
                pairs = [turns.round(number) for number in range(rounds)]
            _note(results, title, turns, pairs)
    results.remarks.append(
        f"`invocations`: {rounds} pairs of turns of {seconds:g} s against one process; a ratio is the median of the "
        "pairs' ratios."
    )


def _check(server: BesidePlain, case: Case, repository: Path) -> None:
    """Compare the answers of both routes with the session's. RuntimeError if one differs."""
    measure.check_answer(server, case, repository)
    body, headers = case.body()
    _, answered, content = server.exchange("POST", case.path, body, headers)
    expected = case.answer(content, answered["Inference-Header-Content-Length"])
    with Client(server.sagemaker_port) as client:
        outputs = invoked(case, client.ask("POST", INVOCATIONS, *invocation(case)))
    if not all(np.array_equal(outputs[name], expected[name]) for name in case.outputs):
        raise RuntimeError(f"{INVOCATIONS} answers {case.key} wrongly")


def _note(results: Figures, title: str, turns: Turns, pairs: list[dict[str, Turn]]) -> None:
    for route in (INVOCATIONS, INFER):
        rates = [pair[route].requests_per_second for pair in pairs]
        results.note(title, f"requests/s; {route}", "requests/s", rates)
        results.note(title, f"CPU per request; {route}", "µs", [pair[route].cpu_us for pair in pairs])
    over = [pair[INVOCATIONS].requests_per_second / pair[INFER].requests_per_second for pair in pairs]
    rate = results.note(title, f"requests/s over those of {INFER}", "ratio", over)
    over = [pair[INVOCATIONS].cpu_us / pair[INFER].cpu_us for pair in pairs]
    results.note(title, f"CPU per request over that of {INFER}", "ratio", over)
    results.note(title, "what others took of the machine", "%", [turns.seen.others * 100])
    results.at_least(title, f"requests/s over those of {INFER}", 0.95, rate.median)
    results.at_most(title, "errors", 0, turns.errors)
