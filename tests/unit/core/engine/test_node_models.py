"""The node tests of the `onnx` package: the engine answers what ONNX Runtime answers, in binary and in JSON."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import onnxruntime
import pytest
from onnx.backend.test.case import node
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from werkzeug.test import Client

from tests.unit.onnx_serving import running_engine
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.tensors import BY_ONNX_NAME, Array

LIMIT_S = 300.0
IR_VERSION = 10
OPSET = 25
# Modules of the package with dimensions of 0, scalars, strings and empty strings among their cases.
CHOSEN = ("concat", "expand", "reduce_log_sum_exp", "reshape", "slice", "string_concat", "string_split", "where")
NOT_IN_JSON = {"FP16", "BF16"}


@dataclass
class Case:
    """A model with arrays for its inputs, and what ONNX Runtime answers. The tuples are (name, v2 datatype, array)."""

    name: str
    content: bytes
    inputs: list[tuple[str, str, Array]]
    outputs: list[tuple[str, str, Array]]


def node_cases(modules: Sequence[str]) -> list[Any]:
    """The cases of `modules`, or of all modules. The package makes them when the modules are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not modules:
            return list(node.collect_testcases(""))
        for name in modules:
            importlib.import_module(f"{node.__name__}.{name}")
        return list(node._NodeTestCases)


def one_of_each_form(given: Sequence[Any]) -> list[Any]:
    """A case for each combination of datatypes and ranks, with and without elements.

    What an operator computes from them is ONNX Runtime's affair.
    """

    def form(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, np.ndarray | np.generic):
            return ("none",)
        return value.dtype.kind, value.dtype.itemsize if value.dtype.kind in "iufc" else 0, value.ndim, value.size > 0

    forms = {tuple(tuple(map(form, side)) for side in case.data_sets[0]): case for case in given}
    return list(forms.values())


def case_of(given: Any) -> Case | None:
    """The case with ONNX Runtime's answers; None if it, the protocol or numpy does not have all that is in it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # The package writes its newest versions, which ONNX Runtime may not know. Nearly all models mean the same in these.
    given.model.ir_version = min(given.model.ir_version, IR_VERSION)
    for entry in given.model.opset_import:
        entry.version = min(entry.version, OPSET) if not entry.domain else entry.version
    content = given.model.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        inputs, outputs = session.get_inputs(), session.get_outputs()
        types = {argument.type for argument in (*inputs, *outputs)}
        if "tensor(bfloat16)" in types or not types <= set(BY_ONNX_NAME):
            return None
        arrays = [np.asarray(value) for value in given.data_sets[0][0]]
        results = session.run(None, dict(zip([argument.name for argument in inputs], arrays, strict=False)))
    except Exception:  # each operator fails in its own way
        return None

    def tensors(arguments: Sequence[Any], values: Sequence[Any]) -> list[tuple[str, str, Array]]:
        pairs = zip(arguments, values, strict=True)
        return [(argument.name, BY_ONNX_NAME[argument.type].name, np.asarray(value)) for argument, value in pairs]

    return Case(given.name, content, tensors(inputs, arrays), tensors(outputs, results))


@contextmanager
def serving(repository: Path) -> Iterator[Client]:
    """A client of the models in the repository, all of which must be loaded."""
    with running_engine(repository, limit_s=LIMIT_S) as engine, closing(GeventBridge(gevent.get_hub())) as bridge:
        assert {entry.name: entry.reason for entry in engine.repository_index(False) if entry.reason} == {}
        yield Client(V2Application(engine, HttpOptions(), bridge))


def difference(client: Client, case: Case, *, binary: bool) -> str:
    """The first difference between the server's answer and ONNX Runtime's; "" for none."""
    inputs = []
    for name, datatype, array in case.inputs:
        # A scalar is a tensor of one element, as in Triton.
        given = InferInput(name, list(array.shape) or [1], datatype)
        inputs.append(given.set_data_from_numpy(array.reshape(array.shape or (1,)), binary_data=binary))
    wanted = [InferRequestedOutput(name, binary_data=binary) for name, _, _ in case.outputs]
    body, length = InferenceServerClient.generate_request_body(inputs, outputs=wanted)
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    answer = client.post(f"/v2/models/{case.name}/infer", data=body, headers=headers)
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.text}"
    header_length = answer.headers.get("Inference-Header-Content-Length")
    result = InferenceServerClient.parse_response_body(
        answer.data, header_length=int(header_length) if header_length else None
    )
    for name, datatype, expected in case.outputs:
        output = result.get_output(name)
        shape = list(expected.shape) or [1]
        if (output["datatype"], output["shape"]) != (datatype, shape):
            return f"{name} is {output['datatype']} {output['shape']}, not {datatype} {shape}"
        if not _same(result.as_numpy(name) if expected.size else np.empty(0), expected.reshape(-1), datatype):
            return f"{name} has other elements"
        if not expected.size and output.get("data", []) != []:
            return f"{name} is not empty"
    return ""


def _same(got: Array, expected: Array, datatype: str) -> bool:
    flat = got.reshape(-1)
    if datatype == "BYTES":
        return [e.decode() if isinstance(e, bytes) else e for e in flat.tolist()] == expected.tolist()
    if expected.dtype.kind == "f":
        return np.allclose(flat, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    return np.array_equal(flat, expected)


@pytest.mark.parametrize("modules", [CHOSEN, pytest.param((), marks=pytest.mark.slow)], ids=["chosen", "all"])
def test_engine_answers_like_onnx_runtime(
    tmp_path: Path, modules: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    cases = [case for given in one_of_each_form(node_cases(modules)) if (case := case_of(given)) is not None]
    # The 1,884 cases of onnx 1.23 have 372 forms, of which ONNX Runtime 1.31 and the v2 protocol have 311.
    assert len(cases) > (20 if modules else 280)
    for case in cases:
        version = tmp_path / case.name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(case.content)

    differences = {}
    with serving(tmp_path) as client:
        for case in cases:
            in_json = not NOT_IN_JSON & {datatype for _, datatype, _ in (*case.inputs, *case.outputs)}
            for binary in (True, False) if in_json else (True,):
                if found_difference := difference(client, case, binary=binary):
                    differences[case.name, binary] = found_difference
    assert differences == {}
