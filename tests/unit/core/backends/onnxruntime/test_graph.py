"""Graphs and their files: model files, names and bounds, weights, ZipMap nodes, locales."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, serving_version, tensor_text
from tests.unit.onnx_serving import serving, session_of
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.backends.onnxruntime.graph import (
    has_bounded_graph,
    library_path,
    model_path,
    signature_of,
    without_zip_maps,
)
from trident.core.errors import ModelLoadFailed, Unsupported

# --- files


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("", "model.onnx"),
        ("", "model.onnx/model.onnx"),
        ('default_model_filename: "sub/other.onnx"', "sub/other.onnx"),
    ],
)
def test_model_file_is_found(text: str, file: str, tmp_path: Path) -> None:
    path = made(tmp_path / file)
    assert model_path(tmp_path, config_of(text)) == path


def test_compute_capability_may_have_its_own_file(tmp_path: Path) -> None:
    default, special = made(tmp_path / "model.onnx"), made(tmp_path / "new.onnx")
    config = config_of('cc_model_filenames { key: "9.0" value: "new.onnx" }')
    assert model_path(tmp_path, config, "9.0") == special
    assert model_path(tmp_path, config, "7.5") == default
    assert model_path(tmp_path, config) == default


@pytest.mark.parametrize("target", ["../../shared/weights.onnx", "/ROOT/shared/weights.onnx", "../../shared"])
def test_link_out_of_the_model_is_followed(tmp_path: Path, target: str) -> None:
    """Versions share weights by links, and the snapshots of a hub consist of links."""
    made(tmp_path / "shared" / "weights.onnx")
    made(tmp_path / "shared" / "model.onnx")
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").symlink_to(target.replace("/ROOT", str(tmp_path)))
    found = model_path(version, config_of(""))
    assert found.is_relative_to(version)
    assert found.is_file()


@pytest.mark.parametrize("name", ["nul\\000.onnx", "n" * 300, "loop"])
def test_name_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelLoadFailed) as caught:
        model_path(tmp_path, config_of(f'default_model_filename: "{name}"'))
    assert caught.value.message == f"failed to stat file {tmp_path}/" + name.replace("\\000", "\0")


def test_libraries_are_searched_in_the_model_then_by_the_system(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    own = made(version / "own.so")
    shared = made(version.parent / "shared.so")
    linked = version.parent / "linked.so"
    linked.symlink_to(made(tmp_path / "ops.so"))
    assert library_path(version, "own.so") == str(own)
    assert library_path(version, "linked.so") == str(linked)
    assert library_path(version, "shared.so") == str(shared)
    assert library_path(version, "/opt/ops.so") == "/opt/ops.so"
    assert library_path(version, "libops.so") == "libops.so"


# --- inputs and outputs


def test_types_other_than_tensors_are_refused() -> None:
    session = session_of(onnx_models.classifier((7, 8, 9), ("", "ai.onnx.ml")))
    with pytest.raises(Unsupported, match="Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'output_prob") as caught:
        signature_of(session, "m")
    assert "zipmap=False" in (caught.value.hint or "")


# --- running time


_LOOP_IN_WEIGHTS = onnx_models.build(
    [helper.make_node("Add", ["INPUT", "weights"], ["OUTPUT"])],
    [onnx_models.tensor("INPUT", "INT8", [6])],
    [onnx_models.tensor("OUTPUT", "INT8", [6])],
    [onnx_models.constant("weights", list(b'"\x04Loop'), "INT8")],
)


@pytest.mark.parametrize(
    ("model", "is_bounded"),
    [
        (onnx_models.add_sub(), True),
        (onnx_models.identity(), True),
        (onnx_models.picky(), True),
        (onnx_models.waiting(), False),
        (onnx_models.allocating(), False),
        (_LOOP_IN_WEIGHTS, True),
    ],
    ids=["add_sub", "identity", "picky", "repeats", "allocates by a value", "weights that read like a loop"],
)
def test_only_plain_graphs_have_a_bounded_running_time(
    tmp_path: Path, model: onnx.ModelProto, is_bounded: bool
) -> None:
    assert has_bounded_graph(onnx_models.write(model, tmp_path / "model.onnx")) is is_bounded


@pytest.mark.parametrize("name", ["model.ort", "ort_format.onnx", "empty.onnx", "large.onnx"])
def test_unsearched_files_count_as_unbounded(tmp_path: Path, name: str) -> None:
    path = onnx_models.write(onnx_models.identity(), tmp_path / name)
    if name == "empty.onnx":
        path.write_bytes(b"")
    elif name == "ort_format.onnx":
        path.write_bytes(b"\0\0\0\0ORTM" + path.read_bytes())
    elif name == "large.onnx":
        with path.open("ab") as file:
            file.truncate(16 * 1024 * 1024 + 1)
    assert not has_bounded_graph(path)


# --- graphs that are changed so that they can be served


ROWS = np.array([[1, 2, 3, 4], [-1, 5, -9, 0.5]], np.float32)


def text_of(label: str) -> str:
    return (
        "max_batch_size: 8\n"
        + tensor_text("input", "X", "FP32", [4])
        + tensor_text("output", "output_label", label, [1], "reshape {}")
        + tensor_text("output", "output_probability", "FP32", [3])
    )


@pytest.mark.parametrize(("labels", "datatype"), [((7, 8, 9), "INT64"), (("a", "b", "ü"), "BYTES")])
@pytest.mark.parametrize("imports", [("", "ai.onnx.ml"), ("ai.onnx.ml",)])
def test_classifier_answers_with_the_values_of_its_maps(
    labels: Sequence[int] | Sequence[str],
    datatype: str,
    imports: Sequence[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = onnx_models.classifier(labels, imports)
    given, maps = session_of(model).run(None, {"X": ROWS})
    caplog.set_level("INFO")
    with serving(model, text_of(datatype), tmp_path) as served:
        answer = served.infer({"X": ROWS})
    assert answer["output_probability"].tolist() == [[row[label] for label in labels] for row in maps]
    found = [label.decode() if isinstance(label, bytes) else label for label in answer["output_label"][:, 0].tolist()]
    assert found == given.tolist()
    assert [message for message in caplog.messages if "ZipMap" in message] == [
        "the ZipMap before output 'output_probability' of model 'model' is left out: the output is a tensor whose "
        f"columns are the labels {', '.join(map(str, labels))}"
    ]


def test_weights_behind_hub_links_are_found(tmp_path: Path) -> None:
    """A snapshot is a folder of links to files that are named after their content."""
    version, blobs = onnx_models.write_version(tfidf("en_XX.UTF-8"), tmp_path, "model"), tmp_path / "blobs"
    onnx.save(
        tfidf("en_XX.UTF-8"), version / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0
    )
    blobs.mkdir()
    for number, name in enumerate(("model.onnx", "weights")):
        (version / name).rename(blobs / str(number))
        (version / name).symlink_to(blobs / str(number))
    config = config_of(TFIDF_CONFIG)
    with serving_version(OnnxRuntimeBackend(), version, config) as served:
        np.testing.assert_allclose(served.infer({"text": TEXTS})["output_probability"], PROBABILITIES, rtol=1e-5)


def test_graphs_without_zip_maps_are_unchanged() -> None:
    assert without_zip_maps(onnx_models.add_sub().SerializeToString()) is None
    assert without_zip_maps(b"not an ONNX graph") is None


# What skl2onnx 1.20 makes of make_pipeline(TfidfVectorizer(), LogisticRegression()), fitted by scikit-learn 1.9 to one
# text in each of three languages, with tokenexp=r"[\pL\pN_]+".
TFIDF = r"""
< ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 1] >
Pipeline (string[?,1] text) => (string[?] output_label, seq(map(string, float[])) output_probability)
   <int64[1] shape_tensor = {-1}, float[8] idfcst = {1.6931472, 1.6931472, 1.6931472, 1.6931472, 1.6931472, 1.6931472,
    1.6931472, 1.6931472}>
{
   flattened = Reshape (text, shape_tensor)
   normalized = StringNormalizer <case_change_action: string = "LOWER", is_case_sensitive: int = 0> (flattened)
   tokenized = com.microsoft.Tokenizer <mark: int = 0, mincharnum: int = 1, pad_value: string = "#",
      tokenexp: string = "[\\pL\\pN_]+"> (normalized)
   flattened1 = Flatten (tokenized)
   output = TfIdfVectorizer <max_gram_length: int = 1, max_skip_count: int = 0, min_gram_length: int = 1,
      mode: string = "TF", ngram_counts: ints = [0], ngram_indexes: ints = [0, 1, 2, 3, 4, 5, 6, 7],
      pool_strings: strings = ["das", "grüne", "haus", "house", "red", "rouge", "the", "éclair"],
      weights: floats = [1, 1, 1, 1, 1, 1, 1, 1]> (flattened1)
   tfidftr_output = Mul (output, idfcst)
   tfidftr_norm = ai.onnx.ml.Normalizer <norm: string = "L2"> (tfidftr_output)
   label, probability_tensor = ai.onnx.ml.LinearClassifier <classlabels_strings: strings = ["de", "en", "fr"],
      coefficients: floats = [0.28281593, 0.28281593, 0.28281593, -0.14140797, -0.14140797, -0.17318869, -0.14140797,
      -0.17318869, -0.14140797, -0.14140797, -0.14140797, 0.28281593, 0.28281593, -0.17318869, 0.28281593, -0.17318869,
      -0.14140797, -0.14140797, -0.14140797, -0.14140797, -0.14140797, 0.34637737, -0.14140797, 0.34637737],
      intercepts: floats = [5.878831e-17, 5.878831e-17, 5.878831e-17], multi_class: int = 1,
      post_transform: string = "SOFTMAX"> (tfidftr_norm)
   output_label = Identity (label)
   probabilities = ai.onnx.ml.Normalizer <norm: string = "L1"> (probability_tensor)
   output_probability = ai.onnx.ml.ZipMap <classlabels_strings: strings = ["de", "en", "fr"]> (probabilities)
}
"""
TEXTS = np.array([["DAS GRÜNE HAUS".encode()], ["ÉCLAIR".encode()], ["the Éclair house".encode()]], object)
# scikit-learn's own predict_proba of the texts.
PROBABILITIES = [
    [0.5104060421117209, 0.24479697894413954, 0.24479697894413954],
    [0.2716433245578222, 0.2716433245578222, 0.45671335088435566],
    [0.2511367432964909, 0.40987373888539935, 0.33898951781810965],
]
TFIDF_CONFIG = (
    "max_batch_size: 8\n"
    + tensor_text("input", "text", "BYTES", [1])
    + tensor_text("output", "output_probability", "FP32", [3])
)


def tfidf(locale: str) -> onnx.ModelProto:
    """The pipeline, with a locale in its StringNormalizer unless it is ""; its weights can be stored outside."""
    model = parser.parse_model(TFIDF)
    if locale:
        model.graph.node[1].attribute.append(helper.make_attribute("locale", locale))
    values = onnx.numpy_helper.to_array(model.graph.initializer[1])
    model.graph.initializer[1].CopyFrom(onnx_models.constant("idfcst", values, "FP32"))
    return model


@pytest.mark.parametrize("locale", ["", "en_XX.UTF-8"])
def test_text_model_serves_without_its_locale(locale: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It lower-cases letters outside ASCII too, and finds its weights in another file."""
    caplog.set_level("INFO")
    version = onnx_models.write_version(tfidf(locale), tmp_path, "model")
    onnx.save(tfidf(locale), version / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    with serving(onnx.load(version / "model.onnx", load_external_data=False), TFIDF_CONFIG, tmp_path) as served:
        answer = served.infer({"text": TEXTS})
    np.testing.assert_allclose(answer["output_probability"], PROBABILITIES, rtol=1e-5)
    if locale:  # a system may have en_US.UTF-8, which is the one of a model that names none
        assert caplog.messages[0] == (
            "model 'model' changes the case of texts by locale en_XX.UTF-8, which this system does not have: C.UTF-8 "
            "is used, whose rules are the same"
        )


def test_locale_with_rules_of_its_own_is_not_replaced(tmp_path: Path) -> None:
    version = onnx_models.write_version(tfidf("tr_XX.UTF-8"), tmp_path, "model")
    with pytest.raises(ModelLoadFailed, match="Failed to construct locale") as caught:
        OnnxRuntimeBackend().inspect(version, config_of(""))
    assert "localedef -i tr_XX -f UTF-8 tr_XX.UTF-8" in (caught.value.hint or "")
