"""Results of levels: percentiles, the knee, intervals, the verdict on a difference, and perf_analyzer's columns."""

from __future__ import annotations

import re
from array import array
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.pictures import picture, rows
from trident.tools.bench.client import LoadClient, Sample, Target, http_request
from trident.tools.bench.measure import (
    Level,
    difference,
    differences,
    due_times,
    knee,
    level_of,
    perf_analyzer_csv,
    pooled,
    server_times,
)


def sample(latencies_ms: list[float], seconds: float = 1.0) -> Sample:
    """Requests that begin one after the other."""
    begun = [index * seconds / len(latencies_ms) for index in range(len(latencies_ms))]
    return Sample(seconds, array("d", begun), array("d", [each / 1e3 for each in latencies_ms]))


def level(concurrency: int, rate: float, p50: float) -> Level:
    found = level_of(sample([p50] * 100), concurrency=concurrency)
    found.rate = rate
    return found


def test_requests_ending_after_the_run_count_only_in_percentiles() -> None:
    found = level_of(sample([1.0] * 99 + [500.0]), concurrency=1)

    assert found.requests == 100
    assert found.rate == 99
    assert found.percentiles["50"] == pytest.approx(1.0)
    assert found.percentiles["99"] > 5
    assert sum(rate for _, rate, *_ in found.slices) / len(found.slices) == 99
    assert Level.read(asdict(found)) == found


def test_knee_has_the_best_ratio_of_rate_to_latency() -> None:
    # Batching helps up to 16; from there on more clients only wait longer.
    levels = [level(1, 8_800, 0.11), level(16, 40_000, 0.32), level(64, 50_000, 1.13)]

    assert knee(levels) == 1
    assert knee([level_of(Sample(1.0), concurrency=1)]) is None


def test_open_loop_beyond_capacity_is_reported_as_behind() -> None:
    assert level_of(sample([1.0] * 50 + [2e3] * 50), rate=100).is_behind
    assert not level_of(sample([1.0] * 50), rate=50).is_behind
    assert due_times(4, 1, poisson=False) == [0, 0.25, 0.5, 0.75]
    assert len(due_times(1000, 10, poisson=True)) == pytest.approx(10_000, rel=0.05)


def test_noise_common_to_a_pair_hides_no_difference() -> None:
    machine = np.linspace(0.3, 1.0, 20)
    turns = [[level(1, rate * speed, 1 / speed) for speed in machine] for rate in (100, 105)]

    rates, p50, _ = differences(*turns, paired=True)

    assert (rates.verdict, rates.ratio) == ("better", pytest.approx(1.05))
    assert p50.verdict == "no difference shown"
    assert difference("", machine, machine * 1.05, paired=False, more_is_better=True).verdict == "no difference shown"
    assert pooled(turns[0]).rate == pytest.approx(65)


def statistics(requests: int, batches: dict[int, int]) -> dict[str, object]:
    times = {"success": 10_000_000, "queue": 2_000_000, "compute_infer": 4_000_000}
    stats = {name: {"count": requests, "ns": requests * ns} for name, ns in times.items()}
    sizes = [{"batch_size": size, "compute_infer": {"count": count}} for size, count in batches.items()]
    return {"model_stats": [{"inference_stats": stats, "batch_stats": sizes}]}


def test_the_servers_times_are_those_between_two_answers() -> None:
    found = server_times(statistics(100, {1: 100}), statistics(110, {1: 102, 4: 2}))

    assert found is not None
    assert (found.requests, found.queue, found.compute_infer) == (10, 2.0, 4.0)
    assert found.batches == {"1": 2, "4": 2}
    assert found.batch == 2.5
    assert server_times({}, {}) is None


def test_the_report_has_perf_analyzers_columns_in_microseconds() -> None:
    found = level(4, 250, 2.0)
    found.server = server_times(statistics(0, {}), statistics(10, {}))

    head, row = (line.split(",") for line in perf_analyzer_csv([found], batch_size=2).splitlines())

    assert head[:4] == ["Concurrency", "Inferences/Second", "Client Send", "Network+Server Send/Recv"]
    assert head[4:8] == ["Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output"]
    assert head[8:] == ["Client Recv", "p50 latency", "p90 latency", "p95 latency", "p99 latency"]
    values = dict(zip(head, row, strict=True))
    assert (values["Concurrency"], values["Inferences/Second"], values["p50 latency"]) == ("4", "500", "2000")
    assert (values["Server Queue"], values["Server Compute Infer"]) == ("2000", "4000")


# --- the page


def test_rows_are_as_long_as_their_values_and_a_mark_fits() -> None:
    plot = rows("sizes", ["ours", "a & b"], [("GB", [(0.408, 0), (10.0, 1)])], mark=(20.0, "limit"))
    ElementTree.fromstring(picture(plot))

    short, long = map(float, re.findall(r'<rect class="s\d fill"[^>]* width="([\d.]+)"', plot))
    left = float(re.findall(r'<rect class="s0 fill" x="([\d.]+)"', plot)[0])
    mark = float(re.findall(r'<line class="limit" x1="([\d.]+)"', plot)[0])
    assert short / long == pytest.approx(0.408 / 10, rel=0.01)
    assert mark - left == pytest.approx(2 * long, rel=0.01)
    assert re.findall(r'class="value"[^>]*>([^<]*)<', plot) == ["0.408", "10"]


def test_requests_in_turn_are_sent_once_each_on_any_connection() -> None:
    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return None

    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        requests = [http_request("GET", f"/{number}", {}) for number in range(6)]
        with LoadClient(Target("127.0.0.1", server.server_port, [requests], in_turn=True)) as client:
            found = client.run(0.5, due=[0.0] * 4 + [0.2] * 2)
        server.shutdown()
        thread.join()
    assert (found.errors, sorted(asked)) == (0, [f"/{number}" for number in range(6)])
