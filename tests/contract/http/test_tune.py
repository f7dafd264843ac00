"""`trident tune`: real trials of a copy of the model, and files with their reasons."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.onnx_serving import add_sub_config, identity_config
from trident.app.cli import main
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import parse_model_config
from trident.core.errors import ServerError
from trident.tools.bench.candidates import Candidate, Executions, execute, most_difference, paddings
from trident.tools.bench.requests import make_inputs

pytestmark = pytest.mark.slow

PLACED = 'name: "model" backend: "onnxruntime" instance_group { count: 1 kind: KIND_CPU }'


def test_tuned_configuration_is_written_beside_the_untouched_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = ROOT / "deploy" / "models"
    before = {file: file.read_bytes() for file in (repository / "digits").rglob("*") if file.is_file()}
    output = tmp_path / "tuned"

    given = ["--p99=5s", "--budget=1s", "--throughput=5", f"--repository={repository}", f"--output={output}"]
    assert main(["tune", "digits", *given]) == 0

    text = (output / "config.pbtxt").read_text()
    assert re.search(r"^# Target: p99 within 5000 ms at 5 requests/s", text, re.MULTILINE)
    assert re.search(r"^# As it was: [\d,.]+/s, p99 [\d.]+ ms\.", text, re.MULTILINE)
    assert parse_model_config(text, "config.pbtxt").name == "digits"
    trials = json.loads((output / "tune.json").read_text())["trials"]
    assert trials
    assert all(level["errors"] == 0 for trial in trials for level in trial["levels"])
    assert 'class="mark"' in (output / "tune.html").read_text()  # the ring of the chosen load
    assert "At 5 requests/s, sent as independent callers do:" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in before} == before


def test_executions_are_measured_without_a_server(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "model")
    config = parse_model_config(add_sub_config() + 'name: "model" backend: "onnxruntime"', "config.pbtxt")
    config.instance_group.add(count=2, kind=config.instance_group.add().KIND_CPU)
    inputs = make_inputs(resolve_model_spec(config, 1, {}), "random", 1, {})

    found = execute(tmp_path / "model", config, 1, inputs, target_s=1)

    assert list(found.times) == [1, 4]  # max_batch_size is 8
    assert all(0 < each < 1 for each in found.times.values())
    given = {each.name: each.array for each in inputs[15]}
    np.testing.assert_array_equal(found.answers[15]["OUTPUT0"], given["INPUT0"] + given["INPUT1"])
    with pytest.raises(ServerError, match=r"failed to stat file .*/2/model.onnx"):
        execute(tmp_path / "model", config, 2, inputs, target_s=1)


@pytest.mark.parametrize("operator", ["Identity", "Softmax"])
def test_padding_is_measured_with_mixed_batches_and_its_answers_are_compared(tmp_path: Path, operator: str) -> None:
    ends = [[onnx_models.tensor(name, "FP32", ("batch", "n"))] for name in ("INPUT0", "OUTPUT0")]
    graph = onnx_models.build([helper.make_node(operator, ["INPUT0"], ["OUTPUT0"])], *ends)
    onnx_models.write_version(graph, tmp_path, "model")
    config = parse_model_config(identity_config("FP32", (-1,)) + PLACED, "config.pbtxt")
    spec = resolve_model_spec(config, 1, {})
    inputs = [make_inputs(spec, "random", 1, {"INPUT0": (length,)})[0] for length in (3, 5, 7)]

    def executed(way: Candidate) -> Executions:
        return execute(tmp_path / "model", way.apply(config), 1, inputs, target_s=1, most=4)

    plain = executed(Candidate(batch=8))
    padded = {each.padding: executed(each) for each in paddings(Candidate(batch=8), config, inputs, 8)}

    assert list(padded) == [
        "lengths to 4, 8",
        "batches to powers of two and lengths to 4, 8",
        "batches to powers of two",
    ]
    assert all(each.mixed_s > 0 for each in (plain, *padded.values()))
    found = [each.difference(plain) for each in padded.values()]
    assert (
        found == [0, 0, 0]
        if operator == "Identity"
        else found[2] == 0 and min(found[:2]) > most_difference(Candidate(precision="bf16"))
    )


def test_tuning_with_a_budget_for_one_trial_changes_nothing(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "model", add_sub_config())
    given = ["--p99=1s", "--budget=0.1s", f"--repository={tmp_path}", f"--output={tmp_path / 'tuned'}"]
    assert main(["tune", "model", *given]) == 0
    assert len(json.loads((tmp_path / "tuned" / "tune.json").read_text())["trials"]) == 1


def test_missing_model_or_wrong_duration_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tune", "absent", f"--repository={tmp_path}", "--p99=20ms"]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main(["tune", "absent", f"--repository={tmp_path}", "--p99=20"]) == 1
    assert "expected a duration as 20ms" in capsys.readouterr().err
