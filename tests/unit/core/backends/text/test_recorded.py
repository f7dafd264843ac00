"""Text models answer what transformers and sentence-transformers answer for the same folder, as it was recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.text_answers import RECORDED, ROWS, Row, write_folder
from tests.unit.backend_serving import config_of, parameter, serving_version, strings
from trident.core.backends.text.backend import TextBackend
from trident.core.errors import InvalidRequest
from trident.core.inference.tensors import Array

ANSWERS = json.loads(RECORDED.read_text())
# Options that the routes of pipelines read, not the model, or that have another name there.
NAMES = {"normalize_embeddings": "normalize"}


def asked(row: Row) -> tuple[dict[str, Array], Mapping[str, Any]]:
    """The inputs of the task, and the options that the model reads."""
    inputs = {name: list(values) for name, values in row.inputs.items()}
    count = len(next(iter(inputs.values())))
    if "candidate_labels" in inputs:
        inputs["candidate_labels"] = inputs["candidate_labels"] * count
    arrays = {
        name: strings(*(each.encode() for each in values), shape=(count, len(values) // count))
        for name, values in inputs.items()
    }
    options = {NAMES.get(name, name): value for name, value in row.options.items()}
    if row.task == "text-classification":
        options.pop("top_k", None)
    if options:
        arrays["parameters"] = strings(*[json.dumps(options).encode()] * count, shape=(count, 1))
    return arrays, options


def in_the_form_of_the_library(row: Row, found: Mapping[str, Array], labels: tuple[str, ...]) -> Any:
    if row.is_embedder:
        return found["embedding"].tolist()
    if row.task == "text-ranking":
        return found["score"].ravel().tolist()
    if row.task == "text-classification":
        rows = [
            [{"label": n, "score": float(s)} for n, s in zip(labels, each, strict=True)] for each in found["scores"]
        ]
        return [sorted(each, key=lambda label: -label["score"]) for each in rows]
    if row.task == "zero-shot-classification":
        names = row.inputs["candidate_labels"]
        rows = [sorted(zip(map(float, each), names, strict=True), reverse=True) for each in found["scores"]]
        return [
            {"sequence": text, "labels": [n for _, n in each], "scores": [s for s, _ in each]}
            for text, each in zip(row.inputs["text"], rows, strict=True)
        ]
    return [json.loads(each) for each in found["answer"].ravel()]


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """The places in which `found` differs from `expected`; numbers may by as much as FP32 allows."""
    if isinstance(expected, float):
        return [] if found == pytest.approx(expected, rel=2e-4, abs=2e-5) else [f"{where}: {found} != {expected}"]
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        return [each for key in expected for each in differences(found[key], expected[key], f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        return [
            each
            for at, pair in enumerate(zip(found, expected, strict=True))
            for each in differences(*pair, f"{where}[{at}]")
        ]
    return [] if found == expected else [f"{where}: {found} != {expected}"]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_answer_is_that_of_the_authors_library(tmp_path: Path, row: Row) -> None:
    folder = write_folder(tmp_path, row)
    backend = TextBackend({})
    config = config_of(parameter("task", row.task) if row.task else "", backend="text")
    backend.complete(folder, config)
    arrays, _ = asked(row)
    with serving_version(backend, folder, config) as serving:
        found = serving.infer(arrays)
        answer = in_the_form_of_the_library(row, found, tuple(serving.model.labels["scores"]))
        for tensor, entry in zip(found.values(), config.output, strict=True):
            assert tensor.shape[1:] == tuple(entry.dims) or -1 in entry.dims
    assert differences(answer, ANSWERS[row.name]["answer"]) == []


def test_every_row_is_recorded() -> None:
    assert ANSWERS.keys() == {row.name for row in ROWS}
    assert not np.isnan([each for row in ANSWERS["mean"]["answer"] for each in row]).any()


def test_unknown_option_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, ROWS[0])
    backend = TextBackend({})
    config = config_of("", backend="text")
    backend.complete(folder, config)
    with serving_version(backend, folder, config) as serving:
        for options, message in (
            ({"top_p": 1}, "'top_p' is not known for feature-extraction"),
            ({"normalize": "yes"}, "'normalize' is \"yes\", not true or false"),
            ({"prompt_name": "passage"}, "the model has no prompt 'passage'"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                serving.infer(
                    {"text": strings(b"a", shape=(1, 1)), "parameters": strings(json.dumps(options).encode())}
                )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("entities by default", {"stride": 2}, "'stride' needs an aggregation_strategy other than none"),
        (
            "entities in parts",
            {"stride": 10, "aggregation_strategy": "simple"},
            "'stride' is 10, and a part has 10 tokens",
        ),
        ("several labels", {"hypothesis_template": "{} {}"}, "not a text with {} or {0} where the label goes"),
        ("several labels", {"hypothesis_template": "{0} {}"}, "not a text with {} or {0} where the label goes"),
    ],
)
def test_option_that_the_library_refuses_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    folder = write_folder(tmp_path, row)
    backend = TextBackend({})
    config = config_of(parameter("task", row.task), backend="text")
    backend.complete(folder, config)
    arrays, _ = asked(replace(row, options=options))
    with serving_version(backend, folder, config) as serving, pytest.raises(InvalidRequest, match=re.escape(message)):
        serving.infer(arrays)


def test_several_answers_are_a_list_however_few_there_are(tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.name == "three answers")
    folder = write_folder(tmp_path, row)
    backend = TextBackend({})
    config = config_of(parameter("task", row.task), backend="text")
    backend.complete(folder, config)
    arrays, _ = asked(replace(row, inputs={**row.inputs, "context": ["anna"]}))
    with serving_version(backend, folder, config) as serving:
        (answers,) = (json.loads(each) for each in serving.infer(arrays)["answer"].ravel())
    assert [each["answer"] for each in answers] == ["anna"]


def test_special_tokens_survive_truncation_on_either_side(tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.name == "special tokens as text")
    folder = write_folder(tmp_path, row)
    backend = TextBackend({})
    config = config_of(parameter("task", row.task), backend="text")
    backend.complete(folder, config)
    with serving_version(backend, folder, config) as serving:
        text = strings(*(each.encode() for each in row.inputs["text"]), shape=(1, 1))
        found = [
            serving.infer({"text": text, "parameters": strings(json.dumps({"truncation_direction": side}).encode())})
            for side in ("left", "right")
        ]
    np.testing.assert_array_equal(found[0]["scores"], found[1]["scores"])
