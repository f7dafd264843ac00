"""Models that TensorFlow has saved: read without it, and run by it where it is installed, otherwise by OpenVINO."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from tests.unit.backend_serving import ON_CPU, config_of, parameter, serving_version, spec_of
from tests.unit.core.backends.tensorflow.tensorflow_models import write_graph, write_saved_model
from trident.core.backends import registry as framework
from trident.core.backends.backend import LoadContext
from trident.core.backends.tensorflow import TensorFlowBackend
from trident.core.config.autocomplete import auto_complete
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, RepositoryUnavailable, ServerError

SAVED = 'platform: "tensorflow_savedmodel"\n'
GRAPH = (
    'platform: "tensorflow_graphdef" max_batch_size: 4\n'
    'input { name: "a" data_type: TYPE_FP32 dims: 4 } input { name: "b" data_type: TYPE_FP32 dims: 4 }\n'
    'output { name: "d" data_type: TYPE_FP32 dims: 4 } output { name: "s" data_type: TYPE_FP32 dims: 4 }\n'
)


def tf_config(text: str) -> ModelConfig:
    return config_of(text, backend="tensorflow")


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has OpenVINO only."""

    def found(name: str) -> ModuleSpec | None:
        return None if name == "tensorflow" else importlib.util.find_spec(name)

    monkeypatch.setattr(framework, "find_spec", found)


def completed(version: Path, text: str = SAVED) -> ModelConfig:
    config = tf_config(text)
    signature = TensorFlowBackend({}).inspect(version, config)
    assert signature is not None
    auto_complete(config, signature, 4)
    return config


def test_saved_model_completes_its_configuration(version: Path) -> None:
    write_saved_model(version)
    config = completed(version)
    assert config.max_batch_size == 4
    assert [(entry.name, list(entry.dims)) for entry in config.input] == [("FIRST", [4]), ("SECOND", [4])]
    assert [entry.name for entry in config.output] == ["DIFFERENCE", "SUM"]


def test_signature_is_chosen_by_parameter(version: Path) -> None:
    write_saved_model(version)
    config = completed(version, SAVED + parameter("TF_SIGNATURE_DEF", "other"))
    assert ([entry.name for entry in config.input], [entry.name for entry in config.output]) == (
        ["FIRST"],
        ["DIFFERENCE"],
    )


@pytest.mark.parametrize(
    ("more", "text", "hint"),
    [
        (parameter("TF_SIGNATURE_DEF", "none"), "expected 'none' signature", "other, serving_default"),
        (parameter("TF_GRAPH_TAG", "gpu"), "expected 'gpu' tag", "serve"),
    ],
)
def test_missing_signature_or_tag_is_named(version: Path, more: str, text: str, hint: str) -> None:
    write_saved_model(version)
    with pytest.raises(ConfigInvalid) as raised:
        completed(version, SAVED + more)
    assert raised.value.message == f"unable to load model 'model', {text}"
    assert hint in (raised.value.hint or "")


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("kind", ["saved model", "graph"])
def test_openvino_serves_models_of_tensorflow(version: Path, kind: str) -> None:
    if kind == "graph":
        write_graph(version)
        config, names = tf_config(GRAPH), ("a", "b", "s", "d")
    else:
        write_saved_model(version)
        config, names = completed(version), ("FIRST", "SECOND", "SUM", "DIFFERENCE")
    first, second, total, difference = names
    with serving_version(TensorFlowBackend({}), version, config) as served:
        given = [(np.full((n, 4), 5 + n, np.float32), np.full((n, 4), n, np.float32)) for n in (1, 2)]
        answers = served.execute([served.request({first: a, second: b}) for a, b in given])
    for (a, b), answer in zip(given, answers, strict=True):
        np.testing.assert_array_equal(answer[total], a + b)
        np.testing.assert_array_equal(answer[difference], a - b)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('platform: "onnxruntime_onnx"', ConfigInvalid, "platform onnxruntime_onnx not supported for TensorFlow model"),
        (SAVED + parameter("TF_NUM_INTRA_THREADS", "-1"), ConfigInvalid, "must be non-negative number"),
        (SAVED + parameter("MAX_SESSION_SHARE_COUNT", "0"), ConfigInvalid, "must be positive number"),
    ],
)
def test_configurations_without_meaning_are_refused(text: str, error: type[ServerError], message: str) -> None:
    with pytest.raises(error) as raised:
        TensorFlowBackend({}).check(tf_config(text))
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            GRAPH.replace('name: "a"', 'name: "x"'),
            ConfigInvalid,
            "unexpected inference input 'x', allowed inputs are: a, b",
        ),
        (GRAPH.replace('name: "d"', 'name: "a"'), ConfigInvalid, "unexpected inference output 'a'"),
        (SAVED, RepositoryUnavailable, "unable to find"),
    ],
)
def test_graph_is_checked_against_the_configuration(
    version: Path, text: str, error: type[ServerError], message: str
) -> None:
    write_graph(version)
    with pytest.raises(error) as raised, serving_version(TensorFlowBackend({}), version, tf_config(text)):
        pass
    assert message in raised.value.message


def test_signature_is_checked_against_the_configuration(version: Path) -> None:
    write_saved_model(version)
    config = completed(version)
    config.input[0].dims[:] = [5]
    with pytest.raises(InvalidModelConfig, match="the model expects 2 dimensions"):
        TensorFlowBackend({}).load(LoadContext(version, config, spec_of(config), (ON_CPU,)))


@pytest.mark.parametrize("content", [b"", b"no message", b"\x0a\xff\xff\xff\xff\x7f"])
def test_broken_saved_model_fails_with_a_cure(version: Path, content: bytes) -> None:
    write_saved_model(version)
    (version / "model.savedmodel" / "saved_model.pb").write_bytes(content)
    with pytest.raises(ServerError) as raised:
        completed(version)
    assert raised.value.hint
