"""The XML of a model says without OpenVINO what OpenVINO says of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.backends.openvino.test_backend import NUMERIC, add_sub, identity, only_one_row, ov_config, save
from trident.core.backends import registry as framework
from trident.core.backends.openvino.backend import OpenVinoBackend
from trident.core.backends.openvino.model_file import signature_of_file
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import validate_against_signature
from trident.core.errors import ModelLoadFailed, NotInstalled

NO_CONFIG = ModelConfig(name="model", backend="openvino")


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    "model",
    [
        *(add_sub(), add_sub((4, 16)), add_sub((-1, 16), layout="NC"), add_sub((-1, 16), layout="CN"), only_one_row()),
        *map(identity, NUMERIC),
    ],
    ids=range(5 + len(NUMERIC)),
)
def test_the_tensors_are_those_of_openvino(version: Path, model: object, monkeypatch: pytest.MonkeyPatch) -> None:
    save(model, version)
    signature = OpenVinoBackend().inspect(version, NO_CONFIG)
    monkeypatch.setattr(framework, "find_spec", lambda name: None)
    assert OpenVinoBackend().inspect(version, NO_CONFIG) == signature
    with pytest.raises(NotInstalled):
        OpenVinoBackend().check(NO_CONFIG)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (ov_config(), []),
        # OpenVINO converts numbers, and serves other batches than the model's own.
        (ov_config(datatype="INT64"), []),
        (ov_config(dims=(15,)), ["input[0].dims", "input[1].dims", "output[0].dims", "output[1].dims"]),
        (ov_config(inputs=("INPUT0", "x")), ["input[1].name"]),
    ],
)
def test_a_configuration_is_compared(
    version: Path, config: ModelConfig, fields: list[str], is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(add_sub((4, 16)), version)
    if not is_there:
        monkeypatch.setattr(framework, "find_spec", lambda name: None)
    try:
        signature = OpenVinoBackend().inspect(version, config)
        assert signature is not None
        problems = validate_against_signature(config, signature, "model")
    except InvalidModelConfig as error:
        problems = list(error.problems)
    assert [problem.path for problem in problems] == fields


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no element found"),
        (b"<net><layers>", "no element found"),
        (b"<html/>", "its first element is <html>, not <net>"),
        (b'<!DOCTYPE net [<!ENTITY a "a">]><net/>', "it has a document type"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "model.xml"
    path.write_bytes(content)
    with pytest.raises(ModelLoadFailed) as raised:
        signature_of_file(path, "model")
    assert f"'model.xml' is not a model of OpenVINO: {text}" in raised.value.message
    assert raised.value.hint


def test_missing_weights_are_named_without_openvino(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(only_one_row(), version)
    weights = version / "model.bin"
    monkeypatch.setattr(framework, "find_spec", lambda name: None)
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelLoadFailed) as cut:
        OpenVinoBackend().inspect(version, NO_CONFIG)
    assert "'model.bin' is incomplete" in (cut.value.hint or "")
    weights.unlink()
    with pytest.raises(ModelLoadFailed) as missing:
        OpenVinoBackend().inspect(version, NO_CONFIG)
    assert missing.value.hint == "put 'model.bin' beside 'model.xml'"
