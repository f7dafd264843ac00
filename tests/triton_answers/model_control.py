"""Loads, reloads and unloads by request, with parameters right and wrong, and of files that change."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers, http
from tests.triton_answers.config_autocomplete import (
    BACKEND,
    OUTPUT,
    ROW,
    WHOLE,
    config_of,
    graph,
    load,
    rows,
    without_folder,
    write_model,
)
from tests.waiting import until

OPTIONS = ("--model-control-mode=explicit", "--load-model=start")
NEWER = "the text of newer releases"
OTHERWISE: dict[str, tuple[str, Any]] = {
    "index: null": (
        NEWER,
        {"status": 400, "type": "application/json", "body": {"error": "Invalid value for 'ready': expected a boolean"}},
    ),
    "index: text": (
        NEWER,
        {"status": 400, "type": "application/json", "body": {"error": "Invalid value for 'ready': expected a boolean"}},
    ),
    "index: number": (
        NEWER,
        {"status": 400, "type": "application/json", "body": {"error": "Invalid value for 'ready': expected a boolean"}},
    ),
    "names: load ..": (
        NEWER,
        {"status": 400, "error": "invalid model name '..', model name must not contain path traversal characters"},
    ),
    "files: without config": (
        NEWER,
        [[400, "Load parameter 'config' must be specified for model file override"], ["IN0"], [["1", "READY"]]],
    ),
    "files: one": ("Triton keeps the version that it has", [200, ["IN0NEW"], [["1", "READY"]]]),
    "files: slash": ("Triton keeps the version that it has", [200, ["IN0NEW"], [["1", "READY"]]]),
    "files: not base64": (
        NEWER,
        [
            [400, "'file:1/model.onnx' must be a valid base64 encoded file"],
            ["IN0NEW"],
            [["1", "UNAVAILABLE"], ["3", "READY"], ["4", "READY"], ["5", "UNAVAILABLE"]],
        ],
    ),
    "files: escaping": (
        NEWER,
        [
            [
                400,
                (
                    "Invalid file parameter 'file:../model.onnx' with normalized path "
                    "'../model.onnx' must stay within model directory."
                ),
            ],
            ["IN0NEW"],
            [["1", "UNAVAILABLE"], ["3", "READY"], ["4", "READY"], ["5", "UNAVAILABLE"]],
        ],
    ),
    "files: escaping inside": (
        NEWER,
        [
            [
                400,
                (
                    "Invalid file parameter 'file:1/../../model.onnx' with normalized path "
                    "'../model.onnx' must stay within model directory."
                ),
            ],
            ["IN0NEW"],
            [["1", "UNAVAILABLE"], ["3", "READY"], ["4", "READY"], ["5", "UNAVAILABLE"]],
        ],
    ),
    "files: no name": (
        NEWER,
        [
            [400, ("Invalid file parameter 'file:' with normalized path '.' must stay within model directory.")],
            ["IN0NEW"],
            [["1", "READY"], ["3", "UNAVAILABLE"], ["4", "UNAVAILABLE"], ["5", "UNAVAILABLE"]],
        ],
    ),
    "files: new name": (
        "every model that was served is in the index",
        [200, {"unheard": [["1", "READY", ""]]}, ["1", "OUT0"]],
    ),
    "files: new name again": (
        "every model that was served is in the index",
        [[500, "failed to load 'unheard', failed to poll from model repository"], {"unheard": [["1", "READY", ""]]}],
    ),
    "changed: no folder": (
        "every model that was served is in the index",
        [
            [500, "failed to load 'changed', failed to poll from model repository"],
            {"changed": [["1", "READY", ""]]},
            True,
        ],
    ),
    "dependents: unload lower": (
        "an ensemble without a step has a reason",
        [
            200,
            [
                {
                    "top": [
                        [
                            "1",
                            "UNAVAILABLE",
                            "Invalid argument: ensemble 'top' depends on 'lower' which has no loaded version.",
                        ]
                    ],
                    "upper": [
                        [
                            "1",
                            "UNAVAILABLE",
                            ("Invalid argument: ensemble 'upper' depends on 'lower' which has no loaded version."),
                        ]
                    ],
                    "lower": [["1", "UNAVAILABLE", "unloaded"]],
                    "side": [
                        [
                            "1",
                            "UNAVAILABLE",
                            ("Invalid argument: ensemble 'side' depends on 'lower' which has no loaded version."),
                        ]
                    ],
                },
                [False, False, False, False],
            ],
            [
                503,
                (
                    "model 'top' failed to load: Invalid argument: ensemble 'top' depends on 'lower' "
                    "which has no loaded version."
                ),
            ],
        ],
    ),
    "dependents: unload lower with dependents": (
        "an ensemble without a step has a reason",
        [
            200,
            [
                {
                    "top": [
                        [
                            "1",
                            "UNAVAILABLE",
                            "Invalid argument: ensemble 'top' depends on 'lower' which has no loaded version.",
                        ]
                    ],
                    "upper": [
                        [
                            "1",
                            "UNAVAILABLE",
                            ("Invalid argument: ensemble 'upper' depends on 'lower' which has no loaded version."),
                        ]
                    ],
                    "lower": [["1", "UNAVAILABLE", "unloaded"]],
                    "side": [
                        [
                            "1",
                            "UNAVAILABLE",
                            ("Invalid argument: ensemble 'side' depends on 'lower' which has no loaded version."),
                        ]
                    ],
                },
                [False, False, False, False],
            ],
        ],
    ),
    "dependents: lone without deep": (
        "an ensemble without a step has a reason",
        [
            [
                400,
                (
                    "load failed for model 'lone': ensemble lone contains models that are not "
                    "available or ambiguous: deep\n"
                ),
            ],
            {
                "lone": [
                    [
                        "1",
                        "UNAVAILABLE",
                        ("Invalid argument: ensemble lone contains models that are not available or ambiguous: deep"),
                    ]
                ],
                "deep": [],
            },
        ],
    ),
    "dependents: unload all": (
        "an ensemble without a step has a reason",
        [
            200,
            200,
            200,
            [
                {
                    "top": [
                        [
                            "1",
                            "UNAVAILABLE",
                            "Invalid argument: ensemble 'top' depends on 'upper' which has no loaded version.",
                        ]
                    ],
                    "upper": [["1", "UNAVAILABLE", "unloaded"]],
                    "lower": [["1", "UNAVAILABLE", "unloaded"]],
                    "side": [["1", "UNAVAILABLE", "unloaded"]],
                },
                [False, False, False, False],
            ],
        ],
    ),
}

NAMES = ("plain", "override", "files", "versions", "policy", "changed", "broken", "lost", "copied", "row")
ENSEMBLE = (
    'platform: "ensemble" max_batch_size: 4 '
    + WHOLE
    + 'ensemble_scheduling { step { model_name: "STEP" model_version: -1 input_map { key: "IN0" '
    'value: "IN0" } output_map { key: "OUT0" value: "OUT0" } } } '
)
STEPS = {"upper": "lower", "top": "upper", "side": "lower", "lone": "deep"}


def write_models(folder: Path) -> None:
    for name in ("start", "lower", "deep", *NAMES):
        write_model(folder, name, ROW)
    for name, step in STEPS.items():
        write_model(folder, name, None, ENSEMBLE.replace("STEP", step), "1/x")
    for number in ("2", "3"):
        shutil.copytree(folder / "versions" / "1", folder / "versions" / number)
        shutil.copytree(folder / "policy" / "1", folder / "policy" / number)
    (folder / "file").touch()


def post(server: ServerProcess, path: str, body: Any = None) -> Any:
    """Status, and the body of an error."""
    answer = http(server, "POST", path, body)
    if answer["status"] == 200:
        return 200 if answer.get("text") == "" else answer
    error = answer["body"]["error"] if "body" in answer else answer["text"]
    return {"status": answer["status"], "error": without_folder(server, error)}


def unload(server: ServerProcess, name: str, body: Any = None) -> Any:
    return post(server, f"/v2/repository/models/{name}/unload", body)


def index(server: ServerProcess, body: Any = None) -> Any:
    rows = http(server, "POST", "/v2/repository/index", body)["body"]
    return sorted(rows, key=lambda row: (row["name"], row.get("version", "")))


def states(server: ServerProcess, *names: str) -> Any:
    """The rows of the index of each model, when nothing is being unloaded any more."""
    until(lambda: not any(row.get("state") == "UNLOADING" for row in index(server)), server.log_text)
    found = {name: rows(server, name) for name in names}
    # Trident says there why the last load of a model failed that still serves.
    return {name: [[*row[:2], "" if row[1] == "READY" else row[2]] for row in found[name]] for name in names}


def ready(server: ServerProcess, name: str, version: int | None = None) -> bool:
    path = f"/v2/models/{name}/ready" if version is None else f"/v2/models/{name}/versions/{version}/ready"
    return bool(http(server, "GET", path)["status"] == 200)


def answers(server: ServerProcess, name: str, version: int | None = None) -> Any:
    """The answer to an inference request of one row: its output, or status and error."""
    path = f"/v2/models/{name}/infer" if version is None else f"/v2/models/{name}/versions/{version}/infer"
    row = {"name": "IN0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    answer = http(server, "POST", path, {"inputs": [row]})
    if answer["status"] != 200:
        return [answer["status"], answer["body"]["error"]]
    return [answer["body"]["model_version"], answer["body"]["outputs"][0]["name"]]


def ask_index(server: ServerProcess) -> Answers:
    bodies: dict[str, Any] = {
        "no body": None,
        "empty": {},
        "ready": {"ready": True},
        "not ready": {"ready": False},
        "null": {"ready": None},
        "text": {"ready": "true"},
        "number": {"ready": 1},
        "unknown": {"already": True},
    }
    found: Answers = {}
    for name, body in bodies.items():
        answer = http(server, "POST", "/v2/repository/index", body)
        if isinstance(answer.get("body"), list):
            answer["body"] = sorted(answer["body"], key=lambda row: row["name"])
        found[name] = answer
    found["named"] = http(server, "POST", "/v2/repository/own/index", {})
    found["get"] = http(server, "GET", "/v2/repository/index")["status"]
    return found


def ask_names(server: ServerProcess) -> Answers:
    found: Answers = {}
    for name in ("none", "*", "..", "...", "file", "start"):
        found[f"load {name}"] = post(server, f"/v2/repository/models/{name}/load", {})
    for name in ("none", "*", "..", "file"):
        found[f"unload {name}"] = unload(server, name)
    for path in ("models//load", "models/load", "models/a/b/load", "own/models/row/load", "own/models/row/unload"):
        found[path] = post(server, f"/v2/repository/{path}", {})
    for action in ("load", "unload"):
        found[f"get {action}"] = http(server, "GET", f"/v2/repository/models/row/{action}")["status"]
    return found | {"index": states(server, "none", "*", "file", "row")}


def ask_bodies(server: ServerProcess) -> Answers:
    parameters: dict[str, Any] = {
        "unknown": {"x": "y"},
        "unknown number": {"x": 1},
        "unknown null": {"x": None},
        "config number": {"config": 1},
        "config object": {"config": {}},
        "unload_dependents": {"unload_dependents": True},
    }
    bodies: dict[str, Any] = {"no body": None, "empty": b"", "object": {}, "unknown member": {"parameter": {}}}
    bodies |= {name: {"parameters": given} for name, given in parameters.items()}
    bodies |= {f"parameters {given}": {"parameters": given} for given in (None, [], "x")}
    found = {f"load, {name}": post(server, "/v2/repository/models/plain/load", body) for name, body in bodies.items()}
    for name in ("no body", "empty", "object", "unload_dependents"):
        found[f"unload, {name}"] = unload(server, "plain", bodies[name])
    return found


def ask_plain(server: ServerProcess) -> Answers:
    found: Answers = {"before": [ready(server, "plain"), answers(server, "plain")]}
    for step in ("load", "load again"):
        found[step] = [load(server, "plain"), states(server, "plain"), answers(server, "plain")]
    for step in ("unload", "unload again"):
        found[step] = [
            unload(server, "plain"),
            states(server, "plain"),
            answers(server, "plain"),
            ready(server, "plain"),
        ]
    found["load after all"] = [load(server, "plain"), states(server, "plain"), answers(server, "plain")]
    return found


def size(server: ServerProcess, name: str) -> Any:
    found = config_of(server, name)
    return found if isinstance(found, int) else [found.get("max_batch_size", 0), len(found["instance_group"])]


def ask_override(server: ServerProcess) -> Answers:
    found: Answers = {}
    steps: dict[str, Any] = {
        "plain": None,
        "two": '{"max_batch_size": 2}',
        "plain after two": None,
        "broken": "{",
        "refused": '{"max_batch_size": -1}',
        "wrong for the graph": '{"max_batch_size": 2, "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [4]}]}',
        "groups": '{"max_batch_size": 2, "instance_group": [{"count": 1}, {"count": 1}]}',
        "two again": '{"max_batch_size": 2}',
    }
    for name, config in steps.items():
        answer = load(server, "override", None if config is None else {"config": config})
        found[name] = [answer, size(server, "override"), states(server, "override"), answers(server, "override")[1:]]
    config = server.repository / "override" / "config.pbtxt"
    config.write_text("max_batch_size: 5")
    found["file written"] = [load(server, "override"), size(server, "override")]
    found["seven"] = [load(server, "override", {"config": '{"max_batch_size": 7}'}), size(server, "override")]
    unload(server, "override")
    found["after unload"] = [load(server, "override"), size(server, "override")]
    return found


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def ask_files(server: ServerProcess) -> Answers:
    config = '{"backend": "onnxruntime"}'
    row = encoded(graph([["b", 4]], suffix="NEW"))
    steps: dict[str, Any] = {
        "plain": {},
        "without config": {"file:1/model.onnx": row},
        "one": {"config": config, "file:1/model.onnx": row},
        "plain after one": {},
        "slash": {"config": config, "file:/1/model.onnx": row},
        "version 5": {"config": config, "file:5/model.onnx": row},
        "two versions": {
            "config": '{"backend": "onnxruntime", "version_policy": {"all": {}}}',
            "file:3/model.onnx": row,
            "file:4/model.onnx": row,
        },
        "no version": {"config": config, "file:model.onnx": row},
        "not base64": {"config": config, "file:1/model.onnx": "%%%"},
        "empty": {"config": config, "file:1/model.onnx": ""},
        "no model": {"config": config, "file:1/model.onnx": encoded(b"no model")},
        "other file": {"config": config, "file:1/other.onnx": row},
        "escaping": {"config": config, "file:../model.onnx": row},
        "escaping inside": {"config": config, "file:1/../../model.onnx": row},
        "dots inside": {"config": config, "file:1/../1/model.onnx": row},
        "no name": {"config": config, "file:": row},
        "config of another name": {"config": '{"name": "other"}', "file:1/model.onnx": row},
        "broken config": {"config": "{", "file:1/model.onnx": row},
        "completed": {"config": "{}", "file:1/model.onnx": row},
    }
    found: Answers = {}
    for name, parameters in steps.items():
        answer = load(server, "files", parameters)
        if isinstance(answer, list):  # ONNX Runtime's own text
            answer[1] = answer[1].partition("load model from buffer")[0].partition("Load model from")[0]
            answer[1] = re.sub(r"file /\S*/1/", "file 1/", answer[1])
        inputs = config_of(server, "files")
        inputs = inputs if isinstance(inputs, int) else [entry["name"] for entry in inputs["input"]]
        present = [[version, state] for version, state, _ in states(server, "files")["files"]]
        found[name] = [answer, inputs, present]
    new = {"config": config, "file:1/model.onnx": encoded(ROW)}
    found["new name"] = [load(server, "unheard", new), states(server, "unheard"), answers(server, "unheard")]
    found["new name again"] = [load(server, "unheard"), states(server, "unheard")]
    found["new name, unload"] = [unload(server, "unheard"), states(server, "unheard")]
    return found


def ask_versions(server: ServerProcess) -> Answers:
    folder = server.repository / "versions"
    found: Answers = {"latest": [load(server, "versions"), states(server, "versions"), answers(server, "versions")]}

    def write(step: str, config: str) -> None:
        (folder / "config.pbtxt").write_text(config)
        found[step] = [load(server, "versions"), states(server, "versions"), answers(server, "versions")]
        found[f"{step}, ready"] = [ready(server, "versions", number) for number in (0, 1, 2, 3, 4)]
        found[f"{step}, metadata"] = http(server, "GET", "/v2/models/versions")["body"].get("versions")

    write("two", "version_policy { latest { num_versions: 2 } }")
    write("all", "version_policy { all { } }")
    write("one and seven", "version_policy { specific { versions: [ 1, 7 ] } }")
    write("seven", "version_policy { specific { versions: [ 7 ] } }")
    write("latest again", "version_policy { latest { num_versions: 1 } }")
    shutil.copytree(folder / "1", folder / "9")
    found["nine added"] = [load(server, "versions"), states(server, "versions")]
    shutil.rmtree(folder / "9")
    found["nine removed"] = [load(server, "versions"), states(server, "versions")]
    (folder / "3" / "model.onnx").write_bytes(b"")
    answer = load(server, "versions")
    found["three broken"] = [answer if answer == 200 else answer[0], answers(server, "versions")]
    found["versions"] = [answers(server, "versions", number) for number in (1, 3, 8)]
    for number in ("x", "-1", "0", "3.0", "03", "99999999999999999999"):
        path = f"/v2/models/versions/versions/{number}"
        found[f"version {number}"] = [http(server, "GET", path + end)["status"] for end in ("", "/config", "/stats")]
    return found


def ask_changed(server: ServerProcess) -> Answers:
    folder = server.repository / "changed"
    found: Answers = {"first": [load(server, "changed"), answers(server, "changed")]}
    (folder / "1" / "model.onnx").write_bytes(graph([["b", 4]], suffix="A"))
    found["before the load"] = answers(server, "changed")
    found["other graph"] = [load(server, "changed"), answers(server, "changed"), states(server, "changed")]
    (folder / "config.pbtxt").write_text("max_batch_size: -1")
    found["broken config"] = [load(server, "changed"), size(server, "changed"), states(server, "changed")]
    found["broken config again"] = [load(server, "changed"), ready(server, "changed")]
    (folder / "config.pbtxt").write_text(BACKEND + OUTPUT)
    found["wrong config"] = [load(server, "changed"), size(server, "changed"), ready(server, "changed")]
    (folder / "config.pbtxt").write_text("max_batch_size: 3")
    found["mended config"] = [load(server, "changed"), size(server, "changed"), states(server, "changed")]
    (folder / "config.pbtxt").unlink()
    found["no config"] = [load(server, "changed"), size(server, "changed")]
    (folder / "1" / "model.onnx").unlink()
    answer = load(server, "changed")
    found["no file"] = [answer, size(server, "changed"), ready(server, "changed")]
    shutil.rmtree(folder)
    found["no folder"] = [load(server, "changed"), states(server, "changed"), ready(server, "changed")]
    found["unloaded"] = [unload(server, "changed"), states(server, "changed"), ready(server, "changed")]
    found["no folder again"] = [load(server, "changed"), states(server, "changed")]
    write_model(server.repository, "changed", ROW)
    found["folder again"] = [load(server, "changed"), states(server, "changed")]
    return found


def ask_dependents(server: ServerProcess) -> Answers:
    """Ensembles: top on upper on lower, side on lower, and lone on deep."""
    names = ("top", "upper", "lower", "side")
    dependents = {"parameters": {"unload_dependents": True}}
    kept = {"parameters": {"unload_dependents": False}}

    def now() -> Any:
        return [states(server, *names), [ready(server, name) for name in names]]

    found: Answers = {"load top": [load(server, "top"), now()]}
    found["load side"] = [load(server, "side"), now()]
    found["unload top"] = [unload(server, "top", kept), now()]
    found["load top again"] = [load(server, "top"), now()]
    found["unload top with dependents"] = [unload(server, "top", dependents), now()]
    found["unload side with dependents"] = [unload(server, "side", dependents), now()]
    found["load lower, then top"] = [load(server, "lower"), load(server, "top"), now()]
    found["unload top with dependents, not lower"] = [unload(server, "top", dependents), now()]
    found["load all"] = [load(server, "top"), load(server, "side"), now()]
    found["unload lower"] = [unload(server, "lower"), now(), answers(server, "top")]
    found["load lower"] = [load(server, "lower"), now(), answers(server, "top")]
    found["unload lower with dependents"] = [unload(server, "lower", dependents), now()]
    found["load upper"] = [load(server, "upper"), now()]
    shutil.rmtree(server.repository / "deep")
    found["lone without deep"] = [load(server, "lone"), states(server, "lone", "deep")]
    write_model(server.repository, "deep", ROW)
    found["lone with deep"] = [load(server, "lone"), states(server, "lone", "deep")]
    found["unload all"] = [unload(server, "side"), unload(server, "upper"), unload(server, "lower"), now()]
    return found
