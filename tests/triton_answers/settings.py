"""Settings of traces and of the log, read and changed over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.config_autocomplete import ROW, write_model

# No request is sampled, so that no file is written.
OPTIONS = (
    "--model-control-mode=explicit",
    "--load-model=model",
    "--trace-config=triton,file=no-trace-is-written.json",
    "--trace-config=rate=5",
    "--trace-config=count=7",
    "--trace-config=triton,log-frequency=3",
)
OTHERWISE: dict[str, tuple[str, Any]] = {
    'trace: {"trace_level": ["x"]}': (
        "nothing is ignored",
        {"status": 400, "changed": {}, "error": "unknown trace level 'x'"},
    ),
    'trace: {"trace_count": "5x"}': (
        "nothing is ignored",
        {"status": 400, "changed": {}, "error": "Unable to parse 'trace_count', got: 5x"},
    ),
    'trace: {"trace_rate": "-1"}': (
        "nothing is ignored",
        {
            "status": 400,
            "changed": {},
            "error": "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1",
        },
    ),
    'trace: {"trace_rate": "5x"}': (
        "nothing is ignored",
        {"status": 400, "changed": {}, "error": "Unable to parse 'trace_rate', got: 5x"},
    ),
    'trace: {"trace_mode": "opentelemetry"}': (
        "nothing is ignored",
        {"status": 501, "changed": {}, "error": "'trace_mode' can not be updated through network protocol"},
    ),
    'trace: {"unknown": "x"}': (
        "nothing is ignored",
        {"status": 400, "changed": {}, "error": "unknown trace setting 'unknown'"},
    ),
    'trace_of_model: {"trace_level": ["x"]}': (
        "nothing is ignored",
        {"status": 400, "changed": {}, "error": "unknown trace level 'x'"},
    ),
    'log: {"log_format": "iso8601"}': (
        "a wrong value is a 400",
        {"status": 400, "changed": {}, "error": "invalid argument for --log_format, got: iso8601"},
    ),
    'log: {"log_format": "x"}': (
        "a wrong value is a 400",
        {"status": 400, "changed": {}, "error": "invalid argument for --log_format, got: x"},
    ),
    'log: {"log_format": ""}': (
        "a wrong value is a 400",
        {"status": 400, "changed": {}, "error": "invalid argument for --log_format, got: "},
    ),
    'log: {"unknown": true}': (
        "nothing is ignored",
        {"status": 400, "changed": {}, "error": "unknown log setting 'unknown'"},
    ),
    'log: {"log_verbose_level": 2, "log_format": "x"}': (
        "a wrong value is a 400",
        {"status": 400, "changed": {"log_verbose_level": 2}, "error": "invalid argument for --log_format, got: x"},
    ),
}

NUMBERS = ("trace_rate", "trace_count", "log_frequency")
TRACE: list[Any] = [
    {},
    *[{"trace_level": value} for value in (["TIMESTAMPS"], ["TENSORS"], ["TIMESTAMPS", "TENSORS"], ["OFF"], [])],
    *[{"trace_level": value} for value in (["OFF", "TIMESTAMPS"], ["OFF", "OFF"], ["TENSORS", "TENSORS"], ["x"])],
    *[{"trace_level": value} for value in ([1], "TENSORS", None, {})],
    *[{name: value} for name in NUMBERS for value in ("1", "0", "x", "", " 5", "+3", "007", "10000000000")],
    *[{name: value} for name in NUMBERS for value in (1, 1.5, True, None, ["1"])],
    *[{"trace_count": value} for value in ("-1", "-2", "5x")],
    *[{"trace_rate": value} for value in ("-1", "5x")],
    *[{"trace_file": value} for value in ("x", None, "", 1)],
    *[{"trace_mode": value} for value in ("triton", "opentelemetry")],
    {"unknown": "x"},
    {"trace_rate": "3", "trace_count": "x"},
    {"trace_count": "4", "trace_file": "x"},
    {"trace_level": ["TIMESTAMPS"], "trace_rate": "0"},
    {"trace_level": ["TIMESTAMPS"], "trace_rate": "1000000", "trace_count": "9", "log_frequency": "2"},
    {"trace_level": ["OFF"], "trace_rate": "0"},
    {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None},
]
LOG: list[Any] = [
    {},
    *[{name: value} for name in ("log_info", "log_warning", "log_error") for value in (False, True)],
    *[{"log_info": value} for value in (1, 0, "true", "false", None, [], {}, 1.5)],
    *[{"log_verbose_level": value} for value in (1, 0, 3, -1, "1", 1.5, True, None)],
    *[{"log_format": value} for value in ("ISO8601", "default", "iso8601", "x", "", None, 1)],
    *[{"log_file": value} for value in ("x", "", None, 1)],
    {"unknown": True},
    {"log_info": False, "log_verbose_level": -1},
    {"log_info": True, "log_file": "x"},
    {"log_verbose_level": 2, "log_format": "x"},
    {"log_error": True, "log_warning": True, "log_info": True, "log_verbose_level": 0, "log_format": "default"},
]


def write_models(folder: Path) -> None:
    write_model(folder, "model", ROW)


def changes(server: ServerProcess, path: str, updates: list[Any], at_first: Any) -> Answers:
    """Status and error of updates, each from the settings `at_first`, and the settings that are others after it."""
    found: Answers = {}
    for update in updates:
        before = http(server, "POST", path, at_first)["body"]
        answer = http(server, "POST", path, update)
        after = http(server, "GET", path)["body"]
        changed = {name: value for name, value in after.items() if value != before[name]}
        found[json.dumps(update)] = {"status": answer["status"], "changed": changed}
        if answer["status"] != 200:
            found[json.dumps(update)]["error"] = answer["body"]["error"]
        elif answer["body"] != after:
            found[json.dumps(update)]["answer"] = answer["body"]
    return found


def ask_trace(server: ServerProcess) -> Answers:
    at_first = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
    found: Answers = {"read": http(server, "GET", "/v2/trace/setting")}
    return found | changes(server, "/v2/trace/setting", TRACE, at_first)


def ask_trace_of_model(server: ServerProcess) -> Answers:
    at_first = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
    path = "/v2/models/model/trace/setting"
    found: Answers = {"read": http(server, "GET", path)}
    found |= changes(
        server, path, [update for update in TRACE if len(update) != 1 or "trace_level" in update], at_first
    )
    # What a model has of its own, and what of all.
    steps: list[tuple[str, Any]] = [
        (path, {"trace_rate": "11"}),
        ("/v2/trace/setting", {"trace_rate": "12", "trace_count": "13"}),
        (path, {"trace_count": "14"}),
        ("/v2/trace/setting", {"trace_level": ["TENSORS"], "trace_rate": "1000000", "trace_count": None}),
        (path, {"trace_level": ["OFF"]}),
        (path, {"trace_rate": None}),
        (path, {"trace_level": None}),
        (path, {"trace_count": None}),
        ("/v2/trace/setting", at_first),
    ]
    for number, (where, update) in enumerate(steps):
        http(server, "POST", where, update)
        both = [http(server, "GET", each)["body"] for each in ("/v2/trace/setting", path)]
        found[f"{number} {json.dumps(update)}"] = both
    for model in ("none", "model/versions/1"):
        found[f"{model}, read"] = http(server, "GET", f"/v2/models/{model}/trace/setting")
        found[f"{model}, written"] = http(server, "POST", f"/v2/models/{model}/trace/setting", {})
    return found


def ask_log(server: ServerProcess) -> Answers:
    at_first = {
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    found: Answers = {"read": http(server, "GET", "/v2/logging")}
    return found | changes(server, "/v2/logging", LOG, at_first)


def ask_methods(server: ServerProcess) -> Answers:
    paths = ("/v2/logging", "/v2/trace/setting", "/v2/models/model/trace/setting")
    return {
        f"{method} {path}": http(server, method, path, {})["status"] for path in paths for method in ("PUT", "DELETE")
    }
