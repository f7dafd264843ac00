"""Instances and their predictions: shapes, names, selected outputs, order.

Source: docs/spec/vertex.md section D points 1 to 7.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.contract.vertex.vertex_container import PREDICT, VertexContainer
from tests.contract.vertex.vertex_models import ROWS, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    with serving(tmp_path_factory) as made:
        yield made


def refused(container: VertexContainer, instances: Any, model: str, **parameters: Any) -> str:
    answer = container.post({"instances": instances, "parameters": {"model": model, **parameters}})
    assert answer.status == 400, answer.body
    return answer.error


# --- one input


def test_answer_is_one_json_document(container: VertexContainer) -> None:
    answer = container.post({"instances": [[1.5] * ROWS]})
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.document == {"predictions": [[1.5] * ROWS]}


@pytest.mark.parametrize("count", [1, 256, 257, 1000])  # the model takes 256 at once
def test_order_is_kept_over_batches(container: VertexContainer, count: int) -> None:
    rows = np.arange(count * ROWS, dtype=np.float32).reshape(count, ROWS)
    np.testing.assert_array_equal(np.array(container.predictions(rows.tolist()), np.float32), rows)


def test_thousand_instances_of_thirty_features_are_answered(container: VertexContainer) -> None:
    rows = np.random.default_rng(5).standard_normal((1000, ROWS)).astype(np.float32)
    for instances in (rows.tolist(), [{"INPUT0": row} for row in rows.tolist()]):
        np.testing.assert_array_equal(np.array(container.predictions(instances), np.float32), rows)


@pytest.mark.parametrize(
    ("model", "instances"),
    [
        ("scalar", [1.0, 2.0, 3.0]),
        ("text", [["a"], ["b"]]),
        ("single", [[1.0], [2.0, 3.0], []]),
        ("variable", [[1.0, 2.0], [3.0, 4.0]]),
        ("matrix", [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]] * 9),
        ("own_batch", [[1.0, 2.0], [3.0, 4.0]]),
        ("own_batch", [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]),
    ],
)
def test_instances_of_many_shapes_are_answered(container: VertexContainer, model: str, instances: list[Any]) -> None:
    answered = container.predictions(instances, model=model)
    expected = [[each] for each in instances] if model == "scalar" else instances
    assert answered == expected
    assert container.predictions([{"INPUT0": each} for each in instances], model=model) == expected


def test_list_of_one_may_be_left_out(container: VertexContainer) -> None:
    assert container.predictions(["a", "b"], model="text") == [["a"], ["b"]]
    assert container.predictions([[1.0], [2.0]], model="scalar") == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("model", "instances", "text"),
    [
        ("rows", [[0] * 30, [0] * 29], "instance 1, input 'INPUT0': expected a list of 30, got one of 29"),
        ("rows", [[0] * 30, 0], "instance 1, input 'INPUT0': expected a list of 30, got 0"),
        ("rows", [[0] * 30, [[0] * 30]], "instance 1, input 'INPUT0': expected a list of 30, got one of 1"),
        ("rows", [[0] * 30, None], "instance 1, input 'INPUT0': expected a list of 30, got null"),
        (
            "variable",
            [[1, 2], [1, 2, 3]],
            "instance 1, input 'INPUT0': expected a list of 2, as instance 0, input 'INPUT0' has, got one of 3",
        ),
        (
            "matrix",
            [[[1, 2], [3, 4]], [[1, 2], [3]]],
            "instance 1, input 'INPUT0', element [1]: expected a list of 2, as instance 0, input 'INPUT0', "
            "element [0] has, got one of 1",
        ),
        ("matrix", [[[1, 2], [3, 4]], [[1, 2]]], "instance 1, input 'INPUT0': expected a list of 2, got one of 1"),
        ("text", [["a"], ["b", "c"]], "instance 1, input 'INPUT0': expected a list of 1, got one of 2"),
        ("single", [[1], [[2]]], "instance 1, input 'INPUT0', element [0]: expected a number that FP32 can hold"),
    ],
)
def test_wrong_shape_is_named(container: VertexContainer, model: str, instances: list[Any], text: str) -> None:
    assert refused(container, instances, model).startswith(text)


# --- several inputs and outputs


SUM = {"OUTPUT0": [11, 22, 33, 44], "OUTPUT1": [9, 18, 27, 36]}
PAIR = {"INPUT0": [10, 20, 30, 40], "INPUT1": [1, 2, 3, 4]}


def test_objects_have_input_and_output_names(container: VertexContainer) -> None:
    turned = dict(reversed(PAIR.items()))
    assert container.predictions([PAIR, turned] * 10, model="add_sub") == [SUM] * 20


def test_outputs_can_be_selected(container: VertexContainer) -> None:
    for outputs in (["OUTPUT1"], "OUTPUT1"):
        assert container.predictions([PAIR], model="add_sub", outputs=outputs) == [[9, 18, 27, 36]]
    assert container.predictions([PAIR], model="add_sub", outputs=[]) == [SUM]
    assert container.predictions([PAIR], model="add_sub", outputs=["OUTPUT1", "OUTPUT0"]) == [SUM]
    assert "'OUTPUT2'" in refused(container, [PAIR], "add_sub", outputs=["OUTPUT0", "OUTPUT2"])


def test_outputs_may_have_different_shapes(container: VertexContainer) -> None:
    answered = container.predictions([[n, 1, 1, 1] for n in range(9)], model="two_outputs")
    assert answered == [{"NEGATED": [-n, -1, -1, -1], "TOTAL": [n + 3]} for n in range(9)]


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        ([PAIR, {"INPUT0": [1] * 4}], "instance 1: input 'INPUT1' is missing"),
        ([{"INPUT1": [1] * 4}], "instance 0: input 'INPUT0' is missing"),
        ([{}], "instance 0: input 'INPUT0' is missing"),
        ([PAIR, {**PAIR, "INPUT2": 1}], "instance 1: 'INPUT2' is not an input of model 'add_sub'"),
        ([PAIR, [1]], "instance 1: expected an object with a value by input name, like the others, got a list"),
        ([5, PAIR], "instance 0: expected an object with a value by input name, like the others, got 5"),
        ([[1, 2]], "instance 0: expected 8 columns (4 for 'INPUT0', 4 for 'INPUT1'), got 2"),
        ([[[1] * 4, [2] * 4]], "instance 0: expected an object with the inputs 'INPUT0', 'INPUT1', got a list"),
        ([PAIR, {**PAIR, "INPUT1": [1, 2, "x", 4]}], "instance 1, input 'INPUT1', element [2]: expected an integer"),
        ([PAIR, {**PAIR, "INPUT1": [1, 2]}], "instance 1, input 'INPUT1': expected a list of 4, got one of 2"),
        ([{**PAIR, "INPUT1": {"b64": "AAAA"}}], "instance 0, input 'INPUT1': expected 16 bytes, got 3"),
    ],
)
def test_missing_extra_and_mixed_inputs_are_named(container: VertexContainer, instances: list[Any], text: str) -> None:
    assert refused(container, instances, "add_sub").startswith(text)


def test_raw_bytes_and_numbers_mix(container: VertexContainer) -> None:
    raw = base64.b64encode(np.array(PAIR["INPUT1"], "<i4").tobytes()).decode()
    instance = {"INPUT0": PAIR["INPUT0"], "INPUT1": {"b64": raw}}
    assert container.predictions([instance] * 3, model="add_sub") == [SUM] * 3


# --- models that do not batch


@pytest.mark.parametrize("count", [1, 400])
def test_model_that_does_not_batch_keeps_the_order(container: VertexContainer, count: int) -> None:
    instances = [[float(n)] * (n % 5 + 1) for n in range(count)]
    assert container.predictions(instances, model="single") == instances


def test_callers_of_such_a_model_get_their_own_answers(container: VertexContainer) -> None:
    def call(caller: int) -> bool:
        instances = [[float(1000 * caller + n)] for n in range(100)]
        return container.predictions(instances, model="single") == instances

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(24)))


# --- models and versions


@pytest.mark.parametrize(("version", "factor"), [(None, 20), (2, 20), (1, 10), ("1", 10), (1.0, 10), (-1, 20)])
def test_requested_version_answers(container: VertexContainer, version: Any, factor: int) -> None:
    parameters = {} if version is None else {"version": version}
    assert container.predictions([[1, 2, 3, 4]], model="versions", **parameters) == [[factor * n for n in (1, 2, 3, 4)]]


def test_missing_model_or_version_is_a_404(container: VertexContainer) -> None:
    for parameters in ({"model": "versions", "version": 3}, {"model": "none"}):
        answer = container.post({"instances": [[1, 2, 3, 4]], "parameters": parameters})
        assert answer.status == 404
        assert next(iter(map(str, parameters.values()))) in answer.error


def test_error_carries_the_request_id(container: VertexContainer) -> None:
    answer = container.post({"instances": [[9]], "parameters": {"model": "picky", "id": "request 7"}})
    assert answer.status != 200
    assert answer.headers["Trident-Request-Id"] == "request 7"


def test_one_failing_instance_fails_the_request(container: VertexContainer) -> None:
    answer = container.post({"instances": [[1], [2], [9], [3]], "parameters": {"model": "picky"}})
    assert answer.status in (400, 500)
    assert "predictions" not in answer.document
    assert answer.error
    assert container.predictions([[1], [2], [3]], model="picky") == [[10], [20], [30]]


# --- the platform's calls


def test_concurrent_perturbed_instances_get_their_own_answers(container: VertexContainer) -> None:
    """Explanations send many perturbed instances, in concurrent calls."""
    base = np.linspace(-1, 1, ROWS, dtype=np.float32)
    noise = np.random.default_rng(1).normal(0, 0.1, (20, 50, ROWS)).astype(np.float32)

    def call(perturbed: Any) -> Any:
        return np.array(container.predictions((base + perturbed).tolist()), np.float32)

    with ThreadPoolExecutor(4) as pool:
        for perturbed, answered in zip(noise, pool.map(call, noise), strict=True):
            np.testing.assert_array_equal(answered, base + perturbed)


def test_type_parameters_and_query_are_ignored(container: VertexContainer) -> None:
    body = {"instances": [[1.0]], "parameters": {"model": "single"}}
    for content_type in ("application/json; charset=utf-8", "APPLICATION/JSON", "text/plain"):
        assert container.post(body, Content_Type=content_type).document == {"predictions": [[1.0]]}
    assert container.post(body, f"{PREDICT}?alt=json").document == {"predictions": [[1.0]]}
    assert container.post(body, Accept="text/html").document == {"predictions": [[1.0]]}
    assert container.ask("POST", PREDICT, json.dumps(body).encode()).document == {"predictions": [[1.0]]}


def test_columns_are_answered_with_columns(container: VertexContainer) -> None:
    """TensorFlow Serving's form, which only rawPredict passes on."""
    columns = {name: [value, value] for name, value in PAIR.items()}
    answer = container.post(
        {"inputs": columns, "parameters": {"model": "add_sub"}, "signature_name": "serving_default"}
    )
    assert answer.document == {"outputs": {name: [value, value] for name, value in SUM.items()}}


def test_bare_list_is_answered_with_a_bare_list(container: VertexContainer) -> None:
    assert container.post([[1.0] * ROWS, [2.0] * ROWS]).document == [[1.0] * ROWS, [2.0] * ROWS]


def test_a_stream_of_a_model_with_one_response_has_an_event(container: VertexContainer) -> None:
    for answer in (
        container.post({"instances": [[1.0] * ROWS], "parameters": {"stream": True}}),
        container.post({"instances": [[1.0] * ROWS]}, Accept="text/event-stream"),
    ):
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        text = answer.body.removeprefix(b"data: ").removesuffix(b"\n\n")
        assert json.loads(text) == {"predictions": [[1.0] * ROWS]}
