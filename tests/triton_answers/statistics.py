"""Statistics of models and the page of metrics after known traffic: names, counts and labels, without durations."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.config_autocomplete import ROW, WHOLE, load, write_model

OPTIONS = ("--model-control-mode=explicit", "--load-model=*", "--cache-config=local,size=1048576")
OTHERWISE: dict[str, tuple[str, Any]] = {
    "traffic: python": (
        "an error that a model returns is a failure",
        [
            [
                "python",
                "1",
                [8, 7, True],
                {
                    "success": 4,
                    "fail": 3,
                    "queue": 4,
                    "compute_input": 4,
                    "compute_infer": 4,
                    "compute_output": 4,
                    "cache_hit": 0,
                    "cache_miss": 0,
                },
                [[1, 4], [2, 1], [3, 1], [4, 1]],
                [],
            ]
        ],
    ),
    "traffic: ensemble": (
        "Triton counts a failed ensemble twice",
        [
            [
                "ensemble",
                "1",
                [5, 2, True],
                {
                    "success": 2,
                    "fail": 1,
                    "queue": 2,
                    "compute_input": 2,
                    "compute_infer": 2,
                    "compute_output": 2,
                    "cache_hit": 0,
                    "cache_miss": 0,
                },
                [[1, 1], [4, 1]],
                [],
            ]
        ],
    ),
    'metrics: nv_inference_request_success{model="python",version="1"}': (
        "an error that a model returns is a failure",
        "4",
    ),
    'metrics: nv_inference_request_success{model="warm",version="1"}': ("no client sent a warmup", "0"),
    'metrics: nv_inference_request_failure{model="python",reason="BACKEND",version="1"}': (
        "an error that a model returns is a failure",
        "3",
    ),
    'metrics: nv_inference_count{model="python",version="1"}': ("an error that a model returns is a failure", "8"),
    'metrics: nv_inference_count{model="warm",version="1"}': ("no client sent a warmup", "0"),
    'metrics: nv_inference_exec_count{model="warm",version="1"}': ("no client sent a warmup", "0"),
    "reload: again": (
        "counters of a version begin at 0",
        [
            200,
            {},
            [
                [
                    "simple",
                    "1",
                    [0, 0, False],
                    {
                        "success": 0,
                        "fail": 0,
                        "queue": 0,
                        "compute_input": 0,
                        "compute_infer": 0,
                        "compute_output": 0,
                        "cache_hit": 0,
                        "cache_miss": 0,
                    },
                    [],
                    [],
                ]
            ],
        ],
    ),
    "reload: counted again": (
        "counters of a version begin at 0",
        [
            200,
            {
                'nv_inference_request_success{model="simple",version="1"}': "1",
                'nv_inference_count{model="simple",version="1"}': "1",
                'nv_inference_exec_count{model="simple",version="1"}': "1",
            },
        ],
    ),
}

BATCHED = WHOLE + "max_batch_size: 8 "
# Fails if the first value is negative; answers with the input otherwise.
PYTHON_CODE = b"""
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value = pb.get_input_tensor_by_name(request, "IN0").as_numpy()
            if value[0, 0] == -1:
                answers.append(pb.InferenceResponse(error=pb.TritonError("told to fail")))
            elif value[0, 0] < -1:
                raise ValueError("told to raise")
            else:
                answers.append(pb.InferenceResponse([pb.Tensor("OUT0", value)]))
        return answers
"""
ENSEMBLE = (
    'platform: "ensemble" max_batch_size: 8 '
    + WHOLE
    + """
ensemble_scheduling {
  step { model_name: "first" model_version: -1
    input_map { key: "IN0" value: "IN0" } output_map { key: "OUT0" value: "M" } }
  step { model_name: "python" model_version: -1
    input_map { key: "IN0" value: "M" } output_map { key: "OUT0" value: "OUT0" } }
}"""
)


def write_models(folder: Path) -> None:
    write_model(folder, "simple", ROW)
    write_model(folder, "unbatched", ROW, "max_batch_size: 0 " + WHOLE.replace("dims: 4", "dims: [ -1, 4 ]"))
    write_model(
        folder, "tagged", ROW, BATCHED + 'metric_tags { key: "b" value: "x" } metric_tags { key: "a" value: "y" }'
    )
    write_model(folder, "cached", ROW, BATCHED + "response_cache { enable: true }")
    write_model(folder, "first", ROW, BATCHED)
    write_model(folder, "versions", ROW, BATCHED + "version_policy { all { } }")
    shutil.copytree(folder / "versions" / "1", folder / "versions" / "2")
    write_model(folder, "python", PYTHON_CODE, 'backend: "python" ' + BATCHED, "1/model.py")
    write_model(folder, "ensemble", None, ENSEMBLE, "1/x")
    write_model(folder, "warm", ROW, BATCHED + 'model_warmup { name: "w" batch_size: 2 inputs { key: "IN0" '
                "value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }")  # fmt: skip


def infer(server: ServerProcess, model: str, rows: int = 1, first: float = 1.0, version: int | None = None) -> int:
    path = f"/v2/models/{model}" if version is None else f"/v2/models/{model}/versions/{version}"
    values = [first, *[0.0] * (rows * 4 - 1)]
    tensor = {"name": "IN0", "shape": [rows, 4], "datatype": "FP32", "data": values}
    return int(http(server, "POST", f"{path}/infer", {"inputs": [tensor]})["status"])


LATER = ("batch_close_count", "bucket_stats")  # Trident's own


def counted(value: Any) -> Any:
    """Statistics without durations and times; members of Trident alone are left out, too."""
    if isinstance(value, dict):
        found = {key: counted(member) for key, member in value.items() if key not in LATER}
        if "ns" in found:
            found["ns"] = "some"
        if "last_inference" in found:
            found["last_inference"] = found["last_inference"] > 0
        found.pop("memory_usage", None)
        return found
    return [counted(entry) for entry in value] if isinstance(value, list) else value


def short(entry: Any) -> Any:
    """The counts of an entry of the statistics."""
    durations = {key: value["count"] for key, value in entry["inference_stats"].items()}
    batches = [[each["batch_size"], each["compute_infer"]["count"]] for each in entry["batch_stats"]]
    counts = [entry["inference_count"], entry["execution_count"], entry["last_inference"] > 0]
    return [entry["name"], entry["version"], counts, durations, batches, sorted(entry["response_stats"])]


def statistics(server: ServerProcess, model: str, version: int | None = None) -> Any:
    path = f"/v2/models/{model}/stats" if version is None else f"/v2/models/{model}/versions/{version}/stats"
    answer = http(server, "GET", path)
    return [short(entry) for entry in answer["body"]["model_stats"]] if answer["status"] == 200 else answer


def ask_traffic(server: ServerProcess) -> Answers:
    """The first questions: they send the traffic that those about the metrics count."""
    found: Answers = {"whole, before": counted(http(server, "GET", "/v2/models/simple/stats")["body"])}
    found["warm, before"] = statistics(server, "warm")[0][3]["fail"]
    traffic: list[tuple[Any, ...]] = [
        *[("simple",)] * 3,
        ("simple", 4),
        ("simple", 8),
        ("simple", 9),
        ("simple", 0),
        ("unbatched", 5),
        ("tagged",),
        *[("cached", 2)] * 3,
        ("cached", 1),
        ("versions",),
        ("versions", 1, 1.0, 1),
        ("python",),
        ("python", 2),
        ("python", 1, -1.0),
        ("python", 3, -2.0),
        ("ensemble",),
        ("ensemble", 4),
        ("ensemble", 1, -2.0),
        ("none",),
    ]
    found["statuses"] = [[list(each), infer(server, *each)] for each in traffic]
    for name in ("simple", "unbatched", "tagged", "cached", "versions", "python", "ensemble", "first"):
        found[name] = statistics(server, name)
    found["whole, after"] = counted(http(server, "GET", "/v2/models/simple/stats")["body"])
    found["all"] = names(server, "/v2/models/stats")
    found["version"] = statistics(server, "versions", 1)
    found["no version"] = statistics(server, "versions", 7)
    found["no model"] = statistics(server, "none")
    found["no version of no model"] = names(server, "/v2/models/versions/1/stats")
    return found


def names(server: ServerProcess, path: str) -> Any:
    answer = http(server, "GET", path)
    if answer["status"] != 200:
        return answer
    return sorted([entry["name"], entry["version"]] for entry in answer["body"]["model_stats"])


LINE = re.compile(r"(?P<name>\w+)(?P<labels>\{.*\})? (?P<value>\S+)")
# Values that differ from machine to machine and from run to run.
UNSTEADY = re.compile(
    r"_us$|_duration|_secs|cpu|_us_sum|_us\{|summary_us|used_bytes|histogram_ms_(sum|bucket)|cache_\w+_summary"
)


# Names that only one of the servers has: those of newer releases and of Trident, and of the cache in Triton's memory.
OTHER_NAMES = re.compile(
    r"(# (HELP|TYPE) )?(trident_|flask_|nv_model_load_|nv_inference_first_response_"
    r"|nv_cache_(util|lookup_duration|insertion_duration|num_\w+(?<!_per_model))[ {])"
)


def page(server: ServerProcess) -> list[str]:
    text = http(server, "GET", "/metrics", port=server.metrics_port)["text"]
    return [line for line in str(text).splitlines() if not OTHER_NAMES.match(line)]


def series(lines: Iterable[str]) -> Answers:
    """The series of Triton's names, with their values where these are counts."""
    found: Answers = {}
    for line in lines:
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            found[line] = "not a line"
            continue
        name = match["name"] + (match["labels"] or "")
        found[name] = "some" if UNSTEADY.search(name) else match["value"]
    return found


def ask_metrics(server: ServerProcess) -> Answers:
    answer = http(server, "GET", "/metrics", port=server.metrics_port)
    lines = page(server)
    found: Answers = {"type": [answer["status"], answer["type"]]}
    found["families"] = sorted(line for line in lines if line.startswith("#"))
    for name, value in series(lines).items():
        found[name] = value
    for method, path in (
        ("POST", "/metrics"),
        ("GET", "/"),
        ("GET", "/metrics/"),
        ("GET", "/metrics?x=y"),
        ("GET", "/v2"),
    ):
        found[f"{method} {path}"] = http(server, method, path, port=server.metrics_port)["status"]
    return found


def ask_reload(server: ServerProcess) -> Answers:
    """A model that is loaded again counts from 0."""

    def of_simple() -> Any:
        found = series(line for line in page(server) if 'model="simple"' in line)
        return {name: value for name, value in found.items() if value not in ("0", "some")}

    found: Answers = {"before": of_simple()}
    (server.repository / "simple" / "config.pbtxt").write_text("max_batch_size: 3")
    found["again"] = [load(server, "simple"), of_simple(), statistics(server, "simple")]
    found["counted again"] = [infer(server, "simple"), of_simple()]
    return found
