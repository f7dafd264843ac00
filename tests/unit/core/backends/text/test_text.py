"""Folders of the Hub as models: their tasks, their answers, and their errors.

The expected answers are computed here from the rows of the table; the definitions are those of transformers' pipelines
and of sentence-transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hub_folders import LONGEST, SIZE, SPECIAL, TABLE, WORDS, head_of, ids_of, mean_of, vectors_of, write_folder
from tests.unit.backend_serving import Serving, config_of, parameter, serving_version, strings
from trident.core.backends.text.backend import TextBackend, groups
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoadFailed, ServerError
from trident.core.inference.tensors import Array


def completed(folder: Path, text: str = "") -> tuple[TextBackend, ModelConfig]:
    backend = TextBackend({})
    config = config_of(text, backend="text")
    backend.complete(folder, config)
    return backend, config


@contextmanager
def serving(folder: Path, text: str = "") -> Iterator[Serving]:
    backend, config = completed(folder, text)
    with serving_version(backend, folder, config) as found:
        yield found


def column(*texts: str | bytes) -> Array:
    elements = [text.encode() if isinstance(text, str) else text for text in texts]
    return strings(*elements, shape=(len(elements), 1))


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def answers(found: dict[str, Array]) -> list[Any]:
    return [json.loads(each) for each in found["answer"].ravel()]


def test_folder_completes_its_configuration(tmp_path: Path) -> None:
    _, config = completed(write_folder(tmp_path, pooling={"pooling_mode_mean_tokens": True}))
    assert [(each.name, list(each.dims), each.optional) for each in config.input] == [
        ("text", [1], False),
        ("parameters", [1], True),
    ]
    assert [(each.name, list(each.dims)) for each in config.output] == [("embedding", [SIZE]), ("tokens", [1])]
    assert (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)) == (1024, [8])
    assert config.default_model_filename == "onnx/model.onnx"


POOLED = {
    "mean": lambda vectors: vectors.mean(axis=0),
    "cls": lambda vectors: vectors[0],
    "last-token": lambda vectors: vectors[-1],
    "max": lambda vectors: vectors.max(axis=0),
}


@pytest.mark.parametrize("pooling", POOLED)
def test_texts_of_many_lengths_are_pooled_without_their_padding(tmp_path: Path, pooling: str) -> None:
    texts = ["good cat", "", "bad dog in paris is this", "unheard", *["cat " * at for at in range(1, 20)]]
    more = parameter("pooling", pooling) + parameter("max_batch_tokens", "48")
    with serving(write_folder(tmp_path), more) as model:
        found = model.infer({"text": column(*texts)})
    expected = [POOLED[pooling](vectors_of(text)) for text in texts]
    np.testing.assert_allclose(found["embedding"], expected, rtol=1e-5)
    assert found["tokens"].ravel().tolist() == [len(ids_of(text)) for text in texts]


def test_modules_of_sentence_transformers_are_followed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, pooling={"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    with serving(folder) as model:
        (vector,) = model.infer({"text": column("good cat")})["embedding"]
    first = vectors_of("good cat")[0]
    np.testing.assert_allclose(vector, first / np.linalg.norm(first), rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "score"),
    [
        ({}, softmax),
        ({"problem_type": "multi_label_classification"}, lambda logits: 1 / (1 + np.exp(-logits))),
        ({"problem_type": "regression"}, lambda logits: logits),
    ],
)
def test_classification_scores_the_labels_of_the_folder(tmp_path: Path, settings: dict[str, str], score: Any) -> None:
    labels = ("POSITIVE", "NEGATIVE", "NEUTRAL")
    with serving(write_folder(tmp_path, "BertForSequenceClassification", labels=labels, settings=settings)) as model:
        assert model.model.labels == {"scores": labels}
        found = model.infer({"text": column("good cat", "bad")})["scores"]
    np.testing.assert_allclose(found, [score(mean_of(text) @ head_of(3)) for text in ("good cat", "bad")], rtol=1e-4)


def test_cross_encoder_scores_pairs(tmp_path: Path) -> None:
    identity = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    folder = write_folder(tmp_path, "BertForSequenceClassification", labels=["LABEL_0"], settings=identity)
    with serving(folder) as model:
        found = model.infer({"query": column("who", "who"), "text": column("anna", "dog in paris")})
    expected = [mean_of("who", text) @ head_of(1) for text in ("anna", "dog in paris")]
    np.testing.assert_allclose(found["score"], expected, rtol=1e-4)
    assert found["tokens"].ravel().tolist() == [5, 7]


def test_zero_shot_scores_the_labels_of_the_request(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "BertForSequenceClassification", labels=("contradiction", "neutral", "entailment"))
    more = parameter("task", "zero-shot-classification") + parameter("hypothesis_template", "this is about {}")
    with serving(folder, more) as model:
        candidates = strings(b"cat", b"dog", b"good", b"bad", shape=(2, 2))
        found = model.infer({"text": column("anna", "paris"), "candidate_labels": candidates})["scores"]

    def entailment(text: str, label: str) -> Any:
        return (mean_of(text, f"this is about {label}") @ head_of(3))[2]

    expected = [
        softmax(np.array([entailment(text, label) for label in labels]))
        for text, labels in (("anna", ("cat", "dog")), ("paris", ("good", "bad")))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_zero_shot_without_entailment_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path, "BertForSequenceClassification", labels=("POSITIVE", "NEGATIVE"))
    with serving(folder, parameter("task", "zero-shot-classification")):
        assert "none of its labels (POSITIVE, NEGATIVE) is entailment" in caplog.text


def test_entities_are_joined(tmp_path: Path) -> None:
    labels = ("O", "B-PER", "I-PER", "B-LOC")
    with serving(write_folder(tmp_path, "BertForTokenClassification", labels=labels)) as model:
        options = column('{"aggregation_strategy": "simple"}')
        (found,) = answers(model.infer({"text": column("Anna lives in Paris"), "parameters": options}))
    words = ["anna", "lives", "in", "paris"]
    scores = [softmax(vectors_of(word)[1] @ head_of(4)) for word in words]
    expected: list[tuple[str, list[int]]] = []
    for at, row in enumerate(scores):
        label = labels[int(row.argmax())]
        tag = label.removeprefix("B-").removeprefix("I-")
        if expected and expected[-1][0] == tag and not label.startswith("B-"):
            expected[-1][1].append(at)
        else:
            expected.append((tag, [at]))
    expected = [(tag, at) for tag, at in expected if tag != "O"]
    assert [entity["entity_group"] for entity in found] == [tag for tag, _ in expected]
    assert [entity["word"] for entity in found] == [" ".join(words[at] for at in tokens) for _, tokens in expected]
    for entity, (_, tokens) in zip(found, expected, strict=True):
        assert "Anna lives in Paris"[entity["start"] : entity["end"]].lower() == entity["word"]
        assert entity["score"] == pytest.approx(np.mean([scores[at].max() for at in tokens]), rel=1e-4)


def test_masks_are_filled(tmp_path: Path) -> None:
    with serving(write_folder(tmp_path, "BertForMaskedLM"), parameter("top_k", "2")) as model:
        one, two = answers(model.infer({"text": column("good [MASK]", "[MASK] in [MASK]")}))
        with pytest.raises(InvalidRequest, match=r"text 0 has no mask: write \[MASK\]"):
            model.infer({"text": column("good")})
    scores = softmax(TABLE[WORDS.index("[MASK]")] @ TABLE.T)
    best = [int(at) for at in np.argsort(-scores)[:2]]
    for words in (one, *two):
        assert [each["token"] for each in words] == best
        assert [each["token_str"] for each in words] == [WORDS[at] for at in best]
        assert [each["score"] for each in words] == pytest.approx([float(scores[at]) for at in best], rel=1e-4)
    shown = ["good", WORDS[best[0]]] if best[0] >= len(SPECIAL) else ["good"]
    assert one[0]["sequence"] == " ".join(shown)


@pytest.mark.parametrize("longest", [LONGEST, 12], ids=["whole", "in parts"])
def test_questions_are_answered_from_the_context(tmp_path: Path, longest: int) -> None:
    context = "Anna lives in Paris this is about good cat and bad dog"
    folder = write_folder(tmp_path, "BertForQuestionAnswering", longest=longest)
    with serving(folder) as model:
        (found,) = answers(model.infer({"question": column("who"), "context": column(context)}))
    assert context[found["start"] : found["end"]] == found["answer"] != ""
    if longest == LONGEST:
        logits = vectors_of("who", context) @ head_of(2)
        inside = np.zeros(len(logits), bool)
        inside[3:-1] = inside[0] = True  # [CLS] takes part, and answers nothing
        starts, ends = (softmax(np.where(inside, logits[:, at], -np.inf)) for at in (0, 1))
        pairs = [(starts[i] * ends[j], i, j) for i in range(3, len(logits)) for j in range(i, min(i + 15, len(logits)))]
        score, first, last = max(pairs)
        assert found["score"] == pytest.approx(score, rel=1e-4)
        assert found["answer"] == " ".join(context.split()[first - 3 : last - 2])


def test_long_texts_are_cut_or_refused(tmp_path: Path) -> None:
    long = "cat " * 500
    with serving(write_folder(tmp_path)) as model:
        found = model.infer({"text": column(long)})
    assert found["tokens"].item() == LONGEST
    refused = pytest.raises(InvalidRequest, match="text 1 has 502 tokens, more than the 32 tokens")
    with serving(tmp_path, parameter("truncate", "false")) as model, refused:
        model.infer({"text": column("cat", long)})


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with serving(write_folder(tmp_path)) as model, pytest.raises(InvalidRequest, match="text 1 is not UTF-8"):
        model.infer({"text": column("cat", b"\xff")})


def test_texts_of_similar_length_share_a_batch() -> None:
    lengths = [500, 10, 480, 12, 11, 500]
    assert list(groups(lengths, 1000, 20)) == [[1, 4, 3], [2, 0], [5]]
    assert list(groups(lengths, 1000, 2)) == [[1, 4], [3], [2], [0, 5]]
    assert list(groups([5000], 1000, 20)) == [[0]]
    assert list(groups([], 1000, 20)) == []


def broken(folder: Path, file: str, content: str | None) -> Path:
    write_folder(folder, pooling={"pooling_mode_mean_tokens": True, "module_input_name": "token_embeddings"})
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "failed to read .*tokenizer.json"),
        ("config.json", None, "config.json is missing"),
        ("config.json", "[" * 100_000, "failed to read .*config.json"),
        ("onnx/model.onnx", None, "model.onnx or onnx/model.onnx is missing"),
        (
            "modules.json",
            '[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]',
            "read 2_Dense/config.js",
        ),
        ("modules.json", '[{"type": "sentence_transformers.models.LSTM", "path": "2_LSTM"}]', "the module 'LSTM'"),
        ("modules.json", '[{"type": "custom_st.Transformer", "path": ""}]', r"the module 'custom_st\.Transformer'"),
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling", "path": "../.."}]', "outside of it"),
        ("modules.json", '[{"type": "sentence_transformers.models.Dense", "path": "../a"}]', "which is outside of it"),
        (
            "modules.json",
            '[{"type": "sentence_transformers.models.Dense", "path": "1_Pooling"}]',
            "module_input_name token_embeddings",
        ),
        (
            "config.json",
            '{"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}, '
            '"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}',
            r"activation torch\.nn\.modules\.activation\.Tanh",
        ),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": true}',
            "a Qwen2Tokenizer with add_prefix_space",
        ),
        ("config_sentence_transformers.json", '{"similarity_fn_name": "jaccard"}', "similarity_fn_name 'jaccard'"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "who"}', "which is not one of its prompts"),
        ("config_sentence_transformers.json", '{"truncate_dim": 0}', "truncate_dim 0, which must be a whole number"),
        (
            "sentence_bert_config.json",
            '{"processing_kwargs": {"text": {"add_special_tokens": false}}}',
            "processing_kwargs with add_special_tokens False",
        ),
        (
            "sentence_bert_config.json",
            '{"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}}',
            "makes vectors of pooler_output",
        ),
        ("tokenizer_config.json", '{"tokenizer_class": "RoFormerTokenizer"}', "finds Chinese words with Python code"),
        ("1_Pooling/config.json", '{"pooling_mode_median_tokens": true}', "pools with 'pooling_mode_median"),
        ("config.json", '{"architectures": ["LlamaForCausalLM"]}', None),
    ],
)
def test_incomplete_folder_names_the_missing_part(
    tmp_path: Path, file: str, content: str | None, message: str | None
) -> None:
    folder = broken(tmp_path, file, content)
    if message is None:
        (folder / "modules.json").unlink()
        message = "generates text"
    with pytest.raises(ModelLoadFailed, match=message):
        completed(folder)


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("task", "translation", ConfigInvalid, "parameter 'task' of model 'model' is 'translation'"),
        ("task", "text-classification", ModelLoadFailed, "has no output of 2 dimensions"),
        ("max_tokens", "0", ConfigInvalid, "parameter 'max_tokens' of model 'model' is 0"),
    ],
)
def test_wrong_parameters_are_refused(
    tmp_path: Path, key: str, value: str, kind: type[ServerError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        completed(write_folder(tmp_path), parameter(key, value))
    assert caught.value.hint


def test_code_in_the_folder_is_not_executed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path, settings={"auto_map": {"AutoModel": "modeling.Own"}})
    (folder / "modeling.py").write_text("raise SystemExit('executed')")
    with caplog.at_level("INFO"):
        completed(folder)
    assert "the Python code that comes with it (auto_map) is not executed" in caplog.text
