"""The page of metrics with histograms and summaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.config_autocomplete import ROW, write_model
from tests.triton_answers.statistics import ENSEMBLE, PYTHON_CODE, WHOLE, infer, page, series

OPTIONS = (
    "--metrics-config=summary_latencies=true",
    "--metrics-config=histogram_latencies=true",
    "--metrics-config=summary_quantiles=0.5:0.05,0.75:0.01",
    "--allow-cpu-metrics=false",
    "--metrics-interval-ms=100",
)
OTHERWISE: dict[str, tuple[str, Any]] = {
    'metrics: nv_inference_request_success{model="python",version="1"}': (
        "without durations requests are counted, too",
        "1",
    ),
    'metrics: nv_inference_request_success{model="ensemble",version="1"}': (
        "without durations requests are counted, too",
        "1",
    ),
    'metrics: nv_inference_request_success{model="first",version="1"}': (
        "without durations requests are counted, too",
        "3",
    ),
    'metrics: nv_inference_request_failure{model="python",reason="BACKEND",version="1"}': (
        "without durations requests are counted, too",
        "1",
    ),
    'metrics: nv_inference_count{model="python",version="1"}': ("without durations requests are counted, too", "2"),
    'metrics: nv_inference_count{model="ensemble",version="1"}': ("without durations requests are counted, too", "2"),
    'metrics: nv_inference_count{model="first",version="1"}': ("without durations requests are counted, too", "7"),
    'metrics: nv_inference_exec_count{model="python",version="1"}': (
        "without durations requests are counted, too",
        "2",
    ),
    'metrics: nv_inference_exec_count{model="ensemble",version="1"}': (
        "without durations requests are counted, too",
        "1",
    ),
    'metrics: nv_inference_exec_count{model="first",version="1"}': ("without durations requests are counted, too", "3"),
    "metrics: nv_pinned_memory_pool_total_bytes": ("there is no such pool", "0"),
}


def write_models(folder: Path) -> None:
    config = WHOLE + "max_batch_size: 8 "
    write_model(folder, "first", ROW, config)
    write_model(folder, "tagged", ROW, config + 'metric_tags { key: "a" value: "y \\" \\\\ z" }')
    write_model(folder, "python", PYTHON_CODE, 'backend: "python" ' + config, "1/model.py")
    write_model(folder, "ensemble", None, ENSEMBLE, "1/x")


def ask_metrics(server: ServerProcess) -> Answers:
    before = page(server)
    found: Answers = {"families before": sorted(line for line in before if line.startswith("#"))}
    traffic: list[tuple[Any, ...]] = [("first",), ("first", 4), ("first", 9), ("python", 1, -2.0), ("ensemble", 2)]
    found["statuses"] = [infer(server, *each) for each in traffic]
    lines = page(server)
    found["families"] = sorted(line for line in lines if line.startswith("#"))
    return found | series(lines)
