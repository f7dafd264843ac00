"""Sequences: controls, correlation ids, states and slots as a model sees them, and refused configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.contract.sequences.sequence_models import FLAGS, controls, echo, history, previous
from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.held import Held, document, infer, refusal, tensors, write_held
from tests.unit.onnx_models import Dims, build, tensor, write_version
from trident.core.inference.tensors import BY_NAME

ONE = "instance_group { count: 1 kind: KIND_CPU } "
KINDS = {  # by model: flags and ids
    "int32_uint64": ("INT32", "UINT64"),
    "fp32_uint32": ("FP32", "UINT32"),
    "bool_int64": ("BOOL", "INT64"),
    "bool_int32": ("BOOL", "INT32"),
}
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 8 }"}
STATE = 'state {{ input_name: "SO_FAR" output_name: "ALL" data_type: TYPE_INT32 dims: {} {} }}'


PLAIN = tensors("input", "INPUT INT32 1") + tensors("output", "OUT_INPUT INT32 1")
HISTORY = tensors("input", "INPUT INT32 1") + tensors("output", "ALL INT32 -1")
TEXTS = tensors("input", "INPUT STRING 1") + tensors("output", "PREVIOUS STRING 1")


def echoed(flag: str, id: str) -> str:
    """The client's tensors of `echo`."""
    outputs = [f"OUT_{name} {flag} 1" for name in ("START", "END", "READY")]
    outputs += ["OUT_INPUT INT32 1", f"OUT_ID {BY_NAME[id].config_name.removeprefix('TYPE_')} 1"]
    return tensors("input", "INPUT INT32 1") + tensors("output", *outputs)


def batching(inside: str, batch: int = 4) -> str:
    return f"max_batch_size: {batch} {ONE} sequence_batching {{ max_sequence_idle_microseconds: 100000000 {inside} }}"


def control(name: str, text: str) -> str:
    return f'control_input {{ name: "{name}" control {{ {text} }} }} '


def identity(inputs: dict[str, str], shape: Dims = ("batch", 1)) -> Any:
    """Each input X of a datatype -> OUT_X."""
    return build(
        [helper.make_node("Identity", [name], [f"OUT_{name}"]) for name in inputs],
        [tensor(name, datatype, shape) for name, datatype in inputs.items()],
        [tensor(f"OUT_{name}", datatype, shape) for name, datatype in inputs.items()],
    )


def initial(text: str, dims: str = "[ 2 ]", datatype: str = "TYPE_INT32", name: str = 'name: "first"') -> str:
    return f"initial_state {{ {name} data_type: {datatype} dims: {dims} {text} }}"


def refused_configs() -> dict[str, tuple[Any, str]]:
    """Graph and configuration by name."""
    plain = identity({"INPUT": "INT32"})
    start, end, ready = (f"kind: CONTROL_SEQUENCE_{each} " for each in ("START", "END", "READY"))
    id = "kind: CONTROL_SEQUENCE_CORRID "
    of_controls = {
        "no name": control("", start + FLAGS["INT32"]),
        "two kinds": control("A", start + FLAGS["INT32"]) + control("A", end + FLAGS["INT32"]),
        "two starts": control("A", start + FLAGS["INT32"]) + control("B", start + FLAGS["INT32"]),
        "two in one": f'control_input {{ name: "A" control [ {{ {start + FLAGS["INT32"]} }}, '
        f"{{ {end + FLAGS['INT32']} }} ] }}",
        "two ids": control("A", id + "data_type: TYPE_UINT64") + control("B", id + "data_type: TYPE_UINT64"),
        "no values": control("A", start),
        "two values": control("A", ready + FLAGS["INT32"] + " " + FLAGS["FP32"]),
        "one int32": control("A", ready + "int32_false_true: [ 1 ]"),
        "three fp32": control("A", ready + "fp32_false_true: [ 1, 2, 3 ]"),
        "three bool": control("A", ready + "bool_false_true: [ true, false, true ]"),
        "flag with datatype": control("A", ready + "data_type: TYPE_INT32"),
        "id with values": control("A", id + FLAGS["INT32"]),
        "id without datatype": control("A", id),
        "id of fp32": control("A", id + "data_type: TYPE_FP32"),
        "id of int16": control("A", id + "data_type: TYPE_INT16"),
        "no control": 'control_input { name: "A" }',
    }
    found = {f"control {name}": (plain, PLAIN + batching(text)) for name, text in of_controls.items()}
    found |= {
        "control not in graph": (plain, PLAIN + batching(control("A", start + FLAGS["INT32"]))),
        "id not in graph": (plain, PLAIN + batching(control("A", id + "data_type: TYPE_UINT64"))),
        "control of other datatype": (
            identity({"INPUT": "INT32", "A": "INT32"}),
            PLAIN + batching(control("A", start + FLAGS["FP32"])),
        ),
        "id of other datatype": (
            identity({"INPUT": "INT32", "A": "INT64"}),
            PLAIN + batching(control("A", id + "data_type: TYPE_UINT64")),
        ),
        "control of other shape": (
            identity({"INPUT": "INT32", "A": "INT32"}, ("batch", 2)),
            PLAIN.replace("[ 1 ]", "[ 2 ]") + batching(control("A", start + FLAGS["INT32"])),
        ),
        "control is an input": (
            identity({"INPUT": "INT32", "A": "INT32"}),
            tensors("input", "INPUT INT32 1", "A INT32 1")
            + tensors("output", "OUT_INPUT INT32 1", "OUT_A INT32 1")
            + batching(control("A", start + FLAGS["INT32"])),
        ),
        "input is no control": (
            identity({"INPUT": "INT32", "A": "INT32"}),
            tensors("input", "INPUT INT32 1")
            + tensors("output", "OUT_INPUT INT32 1", "OUT_A INT32 1")
            + batching("direct { }"),
        ),
        "preferred 0": (plain, PLAIN + batching("oldest { preferred_batch_size: [ 0 ] }")),
        "preferred 5": (plain, PLAIN + batching("oldest { preferred_batch_size: [ 5 ] }")),
        "utilization -0.1": (plain, PLAIN + batching("direct { minimum_slot_utilization: -0.1 }")),
        "utilization 1.1": (plain, PLAIN + batching("direct { minimum_slot_utilization: 1.1 }")),
        "utilization 0": (plain, PLAIN + batching("direct { minimum_slot_utilization: 0 }")),
        "cache": (plain, PLAIN + batching("direct { }") + "response_cache { enable: true }"),
        "candidates -1": (plain, PLAIN + batching("oldest { max_candidate_sequences: -1 }")),
    }
    with_state = history()
    of_states = {
        "two initial": STATE.format("[ -1 ]", initial("zero_data: true") + initial("zero_data: true")),
        "other datatype": STATE.format("[ -1 ]", initial("zero_data: true", datatype="TYPE_FP32")),
        "no name": STATE.format("[ -1 ]", initial("zero_data: true", name="")),
        "other rank": STATE.format("[ -1 ]", initial("zero_data: true", "[ 2, 2 ]")),
        "variable": STATE.format("[ -1 ]", initial("zero_data: true", "[ -1 ]")),
        "other dim": STATE.format("[ 3 ]", initial("zero_data: true")),
        "no data": STATE.format("[ -1 ]", initial("")),
        "no file": STATE.format("[ -1 ]", initial('data_file: "missing"')),
        "short file": STATE.format("[ -1 ]", initial('data_file: "first"')),
        "twice": 2 * STATE.format("[ -1 ]", initial("zero_data: true")),
        "not in graph": 'state { input_name: "NO" output_name: "ALL" data_type: TYPE_INT32 dims: [ -1 ] }',
        "output not in graph": 'state { input_name: "SO_FAR" output_name: "NO" data_type: TYPE_INT32 dims: [ -1 ] }',
        "other type than graph": 'state { input_name: "SO_FAR" output_name: "ALL" data_type: TYPE_FP32 dims: [ -1 ] }',
        "other rank than graph": 'state { input_name: "SO_FAR" output_name: "ALL" data_type: TYPE_INT32 '
        "dims: [ -1, 1 ] }",
        "growable": STATE.format("[ -1 ]", "use_growable_memory: true"),
        "growable same buffer": STATE.format(
            "[ 1 ]", "use_growable_memory: true use_same_buffer_for_input_output: true"
        ),
    }
    found |= {f"state {name}": (with_state, HISTORY + batching(text)) for name, text in of_states.items()}
    return found


def refused_name(name: str) -> str:
    return "refused_" + name.replace(" ", "_").replace("-", "minus").replace(".", "_")


def good_models(repository: Path) -> list[str]:
    for strategy, text in STRATEGIES.items():
        for name, (flag, id) in KINDS.items():
            config = echoed(flag, id) + batching(f"{text} {controls(flag, id)}")
            write_version(echo(flag, id), repository, f"{strategy}_{name}", config)
        unbatched = echoed("BOOL", "INT32") + batching(f"{text} {controls('BOOL', 'INT32')}", 0)
        write_version(echo("BOOL", "INT32", None), repository, f"{strategy}_unbatched", unbatched)
        write_version(identity({"INPUT": "INT32"}), repository, f"{strategy}_bare", PLAIN + batching(text))
        state = STATE.format("[ -1 ]", initial('data_file: "first"', "[ 1 ]"))
        version = write_version(history(), repository, f"{strategy}_file", HISTORY + batching(f"{text} {state}"))
        (version.parent / "initial_state").mkdir()
        (version.parent / "initial_state" / "first").write_bytes(np.array([7, 8, 9], np.int32).tobytes())
        state = STATE.format("[ -1 ]", initial("zero_data: true", "[ 1 ]"))
        write_version(history(), repository, f"{strategy}_zeros", HISTORY + batching(f"{text} {state}"))
        text_state = 'state { input_name: "BEFORE" output_name: "LAST" data_type: TYPE_STRING dims: [ 1 ] '
        text_state += initial("zero_data: true", "[ 1 ]", "TYPE_STRING") + " }"
        version = write_version(previous(), repository, f"{strategy}_texts", TEXTS + batching(f"{text} {text_state}"))
        (version.parent / "initial_state").mkdir()
        (version.parent / "initial_state" / "first").write_bytes(b"\x05\0\0\0first")
        write_held(
            repository,
            f"{strategy}_held",
            tensors("input", "INPUT INT32 -1")
            + tensors("output", "OUTPUT INT32 -1")
            + batching(f"{text} {controls('INT32', 'UINT64')}"),
        )
    longer = STATE.format("[ -1 ]", initial("zero_data: true"))
    write_version(history(), repository, "longer", HISTORY + batching(f"direct {{ }} {longer}"))
    write_held(
        repository,
        "candidates",
        tensors("input", "INPUT INT32 -1")
        + tensors("output", "OUTPUT INT32 -1")
        + batching(f"oldest {{ max_candidate_sequences: 2 }} {controls('INT32', 'UINT64')}"),
    )
    return sorted(path.name for path in repository.iterdir())


def good_names() -> list[str]:
    kinds = [*KINDS, "unbatched", "bare", "file", "zeros", "texts", "held"]
    return sorted([f"{strategy}_{kind}" for strategy in STRATEGIES for kind in kinds] + ["candidates", "longer"])


OPTIONS = ("--model-control-mode=explicit", *[f"--load-model={name}" for name in good_names()])
AT_LOAD = "a state that does not fit the graph is refused at load"
GROWABLE = "a setting without effect is refused"


def too_long(kind: str, id: int) -> tuple[str, Any]:
    error = (
        f"[request id: <id_unknown>] sequence batching control 'ID' data-type is '{KINDS[kind][1]}', which cannot hold "
        f"the correlation ID {id}"
    )
    return "two sequences could look like one", {"status": 400, "error": error}


OTHERWISE: dict[str, tuple[str, Any]] = {
    "refused: control two in one": (
        "a tensor has one meaning",
        "sequence batching control tensor 'A' is specified for multiple control kinds for refused_control_two_in_one",
    ),
    "refused: control is an input": (
        "the cause is named",
        "sequence batching control tensor 'A' must not be a model input for refused_control_is_an_input",
    ),
    "refused: state short file": (
        "with the space that is missing in Triton's text",
        "initial_state setting expects 8 bytes, but the data provided from first only has 7 bytes.",
    ),
    "refused: state twice": ("the cause is named", "State input name 'SO_FAR' specified more than once."),
    "refused: state not in graph": (
        AT_LOAD,
        "unexpected inference input 'NO', allowed inputs are: INPUT, SO_FAR",
    ),
    "refused: state output not in graph": (AT_LOAD, "unexpected inference output 'NO', allowed outputs are: ALL"),
    "refused: state other type than graph": (
        AT_LOAD,
        "unable to load model 'refused_state_other_type_than_graph', configuration expects datatype TYPE_FP32 for "
        "input 'SO_FAR', model provides TYPE_INT32",
    ),
    "refused: state other rank than graph": (
        AT_LOAD,
        "model 'refused_state_other_rank_than_graph', tensor 'SO_FAR': the model expects 2 dimensions (shape [-1,-1]) "
        "but the model configuration specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 "
        "followed by the explicit tensor shape, making complete shape [-1,-1,1])",
    ),
    "refused: state growable": (
        GROWABLE,
        "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'SO_FAR'.",
    ),
    "refused: state growable same buffer": (
        GROWABLE,
        "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
        "instance type to KIND_GPU or set 'use_growable_memory' to false for state input 'SO_FAR'.",
    ),
    "long_ids: fp32_uint32 4294967297": too_long("fp32_uint32", 2**32 + 1),
    "long_ids: fp32_uint32 9223372036854775808": too_long("fp32_uint32", 2**63),
    "long_ids: bool_int32 4294967297": too_long("bool_int32", 2**32 + 1),
    "long_ids: bool_int32 9223372036854775808": too_long("bool_int32", 2**63),
    "states: longer": (
        "an initial state has its own dimensions, which are 1 in Triton where those of the state are variable",
        {"ALL": [[0, 0, 1], [1, 3]]},
    ),
    "slots: direct two shapes, executions": ("a batch has requests that follow one another", 4),
}


def write_models(folder: Path) -> None:
    assert good_models(folder) == good_names()
    for name, (graph, config) in refused_configs().items():
        version = write_version(graph, folder, refused_name(name), config)
        if name == "state short file":
            (version.parent / "initial_state").mkdir()
            (version.parent / "initial_state" / "first").write_bytes(b"1234567")


def request(value: Any, id: Any = None, marks: str = "", shape: list[int] | None = None, **more: Any) -> Any:
    """A request of a sequence. `marks` has s for its START and e for its END."""
    parameters = {} if id is None else {"sequence_id": id}
    if "s" in marks:
        parameters["sequence_start"] = True
    if "e" in marks:
        parameters["sequence_end"] = True
    values = value if isinstance(value, list) else [value]
    return document(
        [("INPUT", more.pop("datatype", "INT32"), shape or [1, len(values)], values)], parameters=parameters, **more
    )


def ask_refused(server: ServerProcess) -> Answers:
    return {name: refusal(server, refused_name(name)) for name in refused_configs()}


def ask_controls(server: ServerProcess) -> Answers:
    found: Answers = {}
    for strategy in STRATEGIES:
        for kind in [*KINDS, "unbatched"]:
            model, shape = f"{strategy}_{kind}", [1] if kind == "unbatched" else [1, 1]
            for marks in ("s", "", "e", "se"):
                answer = infer(server, model, request(1, 7, marks, shape))
                found[f"{model} {marks}"] = (
                    {name: each[0] for name, each in answer.items() if name != "OUT_INPUT"}
                    if "status" not in answer
                    else answer
                )
    return found


def ask_rules(server: ServerProcess) -> Answers:
    found: Answers = {}
    for strategy in STRATEGIES:
        for kind, first, other in (
            ("int32_uint64", 11, "eleven"),
            ("bare", "eleven", 11),
            ("bare", 11, "eleven"),
        ):
            model = f"{strategy}_{kind}"
            label = f"{model} of {first!r}"
            asked = {
                "no id": request(1),
                "no id, start": request(1, None, "s"),
                "id 0": request(1, 0, "s"),
                "empty id": request(1, "", "s"),
                "no start": request(1, first),
                "end without start": request(1, first, "e"),
                "other kind of id": request(1, other, "se"),
                "start": request(1, first, "s"),
                "start again": request(2, first, "s"),
                "goes on": request(3, first),
                "end": request(4, first, "e"),
                "after end": request(5, first),
                "two items": request([1, 2], first, "s", [2, 1]),
                "no items": request([], first, "s", [0, 1]),
                "wrong shape": request([1, 2], first, "s", [1, 2]),
                "after wrong shape": request(1, first),
                "128 characters": request(1, 128 * "x", "se"),
                "129 characters": request(1, 129 * "x", "se"),
                "largest": request(1, 2**64 - 1, "se"),
                "too large": request(1, 2**64, "se"),
                "negative": request(1, -1, "se"),
                "fraction": request(1, 1.5, "se"),
                "bool id": request(1, True, "se"),
                "text of a number": request(1, "11", "se"),
                "control as output": request(1, first, "se", outputs=[{"name": "START"}]),
            }
            if kind == "int32_uint64":  # Triton writes any text there, beyond the end of the tensor
                for name in ("other kind of id", "128 characters", "129 characters", "text of a number"):
                    del asked[name]
            for name, each in asked.items():
                found[f"{label} {name}"] = infer(server, model, each)
            for key in ("sequence_start", "sequence_end"):
                for value in ("true", 1, 0, None):
                    each = request(1, first, "s")
                    each["parameters"][key] = value
                    found[f"{label} {key} {value!r}"] = infer(server, model, each)
            sent = request(1, first, "se")
            sent["inputs"].append({"name": "START", "datatype": "INT32", "shape": [1, 1], "data": [1]})
            found[f"{label} control as input"] = infer(server, model, sent)
    return found


def ask_long_ids(server: ServerProcess) -> Answers:
    """Ids that do not fit into 32 bits, or into 63."""
    return {
        f"{kind} {id}": infer(server, f"direct_{kind}", request(1, id, "se", outputs=[{"name": "OUT_ID"}]))
        for kind in ("int32_uint64", "bool_int64", "fp32_uint32", "bool_int32")
        for id in (2**31, 2**32 - 1, 2**32 + 1, 2**63)
    }


def ask_states(server: ServerProcess) -> Answers:
    found: Answers = {}
    for strategy in STRATEGIES:
        for kind in ("file", "zeros"):
            model = f"{strategy}_{kind}"
            steps = [(1, "s"), (2, ""), (3, "s"), (4, "e"), (5, "se")]
            found |= {f"{model} {n}{marks}": infer(server, model, request(n, 21, marks)) for n, marks in steps}
    found["longer"] = infer(server, "longer", request(1, 1, "se"))
    for strategy in STRATEGIES:
        model = f"{strategy}_texts"
        for text, marks in (("a", "s"), ("b", ""), ("c", "s"), ("d", "e")):
            found[f"{model} {text}{marks}"] = infer(server, model, request(text, 22, marks, datatype="BYTES"))
        wanted = request("a", 23, "se", datatype="BYTES", outputs=[{"name": "LAST"}])
        found[f"{model} state as output"] = infer(server, model, wanted)
        sent = request("a", 23, "se", datatype="BYTES")
        sent["inputs"].append({"name": "BEFORE", "datatype": "BYTES", "shape": [1, 1], "data": ["x"]})
        found[f"{model} state as input"] = infer(server, model, sent)
    return found


def seen(executions: list[Any], *names: str) -> Any:
    """Values of each request in each execution, without those of inputs that are not defined for a null request."""
    return [
        [
            [each[name][0] if name != "INPUT" or each["READY"][0] == [1] else None for name in names]
            for each in execution
        ]
        for execution in executions
    ]


def ask_slots(server: ServerProcess) -> Answers:
    """What the model sees of four sequences, whose requests arrive in different orders."""
    found: Answers = {}
    names = ("INPUT", "START", "END", "READY", "ID")
    for strategy in STRATEGIES:
        model = f"{strategy}_held"
        for id in (1, 2, 3, 4):
            infer(server, model, request(id, id, "s"))
        with Held(server, model) as held:
            held.start(request(40, 4))  # executed; the others wait
            held.send(request(20, 2))
            held.send(request(30, 3))
            held.send(request(21, 2))
            held.send(request(41, 4, "e"))
        found[f"{strategy} in slots"] = seen(held.executions, *names) if strategy == "direct" else None
        found[f"{strategy} answers"] = held.answers
        with Held(server, model) as held:
            held.start(request(22, 2))
            held.send(request([1, 2], 1))
            held.send(request([3], 3))
            held.send(request([4, 5], 2))
        found[f"{strategy} two shapes, executions"] = len(held.executions) if strategy == "direct" else None
        found[f"{strategy} two shapes"] = held.answers
        for id in (1, 2, 3):
            infer(server, model, request(0, id, "e"))
    return found


def ask_backlog(server: ServerProcess) -> Answers:
    """Two slots, five sequences."""
    found: Answers = {}
    with Held(server, "candidates") as held:
        held.start(request(10, 1, "s"))
        held.send(request(20, 2, "s"))
        held.send(request(30, 3, "s"))
        held.send(request(31, 3, "e"))
        late = request(40, 4, "s")
        late["parameters"]["timeout"] = 1
        number = held.send(late)
        held.wait(number)
        held.send(request(41, 4))
        held.send(request(11, 1, "e"))
        held.send(request(12, 1, "s"))
        held.send(request(13, 1, "e"))
        held.send(request(21, 2, "e"))
    found["answers"] = held.answers
    order: dict[int, list[int]] = {}
    for execution in held.executions:
        for each in execution:
            order.setdefault(each["ID"][0][0], []).append(each["INPUT"][0][0])
    found["order"] = sorted(order.items())
    return found
