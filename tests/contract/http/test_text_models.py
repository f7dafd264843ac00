"""Folders of the Hub, served as they are, asked by the clients that people have for other servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from tests.contract.servers.server import ServerProcess
from tests.hub_folders import LONGEST, head_of, ids_of, mean_of, write_folder
from trident.core.inference.tensors import Array

LABELS = ("POSITIVE", "NEGATIVE")


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("text")
    repository = folder / "models"
    write_folder(repository / "embedder")
    write_folder(repository / "classifier" / "1", "BertForSequenceClassification", labels=LABELS, graph="model.onnx")
    write_folder(repository / "ranker", "BertForSequenceClassification", labels=["LABEL_0"])
    write_folder(repository / "filler", "BertForMaskedLM")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0", "--error-hints=field") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def softmax(text: str) -> Array:
    powers = np.exp(mean_of(text) @ head_of(len(LABELS)))
    return np.asarray(powers / powers.sum())


def test_tritonclient_gets_vectors_and_classes(server: ServerProcess) -> None:
    texts = np.array([["good cat"], ["bad"]], dtype=np.object_)
    given = InferInput("text", [2, 1], "BYTES")
    given.set_data_from_numpy(texts)
    with InferenceServerClient(server.address) as triton:
        vectors = triton.infer("embedder", [given]).as_numpy("embedding")
        classes = triton.infer("classifier", [given], outputs=[InferRequestedOutput("scores", class_count=1)]).as_numpy(
            "scores"
        )
    np.testing.assert_allclose(vectors, [mean_of("good cat"), mean_of("bad")], rtol=1e-5)
    for (text,), (found,) in zip(texts, classes, strict=True):
        score, index, label = found.decode().split(":")
        assert float(score) == pytest.approx(softmax(text).max(), rel=1e-4)
        assert label == LABELS[int(index)] == LABELS[int(softmax(text).argmax())]


def test_openai_gets_embeddings(client: Any) -> None:
    texts = ["good cat", "bad dog in paris"]
    answer = client.embeddings.create(model="embedder", input=texts)
    np.testing.assert_allclose([each.embedding for each in answer.data], [mean_of(text) for text in texts], rtol=1e-5)
    assert answer.usage.total_tokens == sum(len(ids_of(text)) for text in texts)
    plain = client.embeddings.create(model="embedder", input="bad", encoding_format="float", dimensions=2)
    cut = mean_of("bad")[:2]
    np.testing.assert_allclose(plain.data[0].embedding, cut / np.linalg.norm(cut), rtol=1e-5)
    assert [model.id for model in client.models.list()] == ["classifier", "embedder", "filler", "ranker"]
    assert client.models.retrieve("embedder").id == "embedder"


def test_openai_sends_token_ids_with_or_without_special_tokens(client: Any) -> None:
    with_special, without = ids_of("good cat"), ids_of("bad dog in paris")[1:-1]
    answer = client.embeddings.create(model="embedder", input=[with_special, without])
    expected = [mean_of("good cat"), mean_of("bad dog in paris")]
    np.testing.assert_allclose([each.embedding for each in answer.data], expected, rtol=1e-5)
    one = client.embeddings.create(model="embedder", input=without)
    np.testing.assert_allclose(one.data[0].embedding, expected[1], rtol=1e-5)
    long = client.embeddings.create(model="embedder", input=without * LONGEST)
    assert long.usage.total_tokens == LONGEST


def test_more_texts_than_a_batch_has_are_several_requests(client: Any) -> None:
    texts = ["cat", "bad dog"] * 1300
    answer = client.embeddings.create(model="embedder", input=texts, encoding_format="float")
    assert [each.index for each in answer.data] == list(range(len(texts)))
    np.testing.assert_allclose(
        [each.embedding for each in answer.data[-2:]], [mean_of("cat"), mean_of("bad dog")], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ({"model": "none", "input": "cat"}, 404, "unknown model: 'none'"),
        ({"model": "embedder", "input": ""}, 400, "cannot be an empty string"),
        ({"model": "embedder", "input": []}, 400, "'input' must be a list with at least one text"),
        (
            {"model": "embedder", "input": [3, 102]},
            400,
            "text 0 has the token id 102, the model's vocabulary has 0 to 17",
        ),
        ({"model": "embedder", "input": [[3], [-1]]}, 400, "item 1 of 'input' must be a text, or a list with"),
        ({"model": "embedder", "input": ["cat", 5]}, 400, "item 1 of 'input' is not a string"),
        ({"model": "embedder", "input": "cat", "dimensions": 9}, 400, "the model's vectors have 4"),
        ({"model": "embedder", "input": "cat", "encoding_format": "hex"}, 400, "'encoding_format' is 'hex'"),
        ({"model": "ranker", "input": "cat"}, 400, "gives no embeddings of texts"),
    ],
)
def test_openai_gets_errors_in_its_form(client: Any, arguments: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(**arguments)
    assert caught.value.status_code == status
    assert message in caught.value.body["message"]


def test_documents_are_ranked(server: ServerProcess) -> None:
    texts = ["anna", "dog in paris", "cat"]
    logits = [(mean_of("who", text) @ head_of(1)).item() for text in texts]
    scores = [1 / (1 + np.exp(-logit)) for logit in logits]
    order = sorted(range(3), key=lambda at: -scores[at])
    asked = {"model": "ranker", "query": "who", "documents": texts, "top_n": 2}
    found = server.json("POST", "/v1/rerank", asked)
    assert [(each["index"], each["document"]["text"]) for each in found["results"]] == [
        (at, texts[at]) for at in order[:2]
    ]
    assert found["usage"]["total_tokens"] == sum(len(ids_of("who", text)) for text in texts)
    found = server.json("POST", "/rerank", {"query": "who", "texts": texts})
    assert [each["index"] for each in found] == order
    assert [each["score"] for each in found] == pytest.approx([scores[at] for at in order], rel=1e-4)


def test_clients_of_text_embeddings_inference_are_answered(server: ServerProcess) -> None:
    found = InferenceClient(model=f"http://{server.address}/embed").feature_extraction("good cat")
    np.testing.assert_allclose(found, [mean_of("good cat")], rtol=1e-5)
    labels = server.json("POST", "/predict", {"inputs": "good cat"})
    assert [each["label"] for each in labels] == [LABELS[at] for at in np.argsort(-softmax("good cat"))]
    labels = server.json("POST", "/predict", {"inputs": [["bad"], ["cat"]]})
    assert [row[0]["score"] for row in labels] == pytest.approx(
        [softmax(text).max() for text in ("bad", "cat")], rel=1e-4
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ["cat", ""]}, "item 1 of 'inputs' cannot be an empty string"),
        ({"truncate": False}, "'truncate' is False in the request, which model 'embedder' does not do"),
        ({"truncation_direction": "Left"}, "'truncation_direction' is 'Left' in the request"),
        ({"prompt_name": "query"}, "'prompt_name' is 'query' in the request"),
        ({"dimensions": 9}, "the model's vectors have 4"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    server: ServerProcess, options: dict[str, Any], message: str
) -> None:
    status, _, body = server.request("POST", "/embed", json.dumps({"inputs": "cat", **options}).encode())
    assert status == 400
    assert message in json.loads(body)["error"]


def test_vectors_get_length_one_where_asked(server: ServerProcess) -> None:
    usual = {"truncate": True, "truncation_direction": "Right", "prompt_name": None}
    found = server.json("POST", "/embed", {"inputs": [ids_of("cat")], "normalize": True, **usual})
    np.testing.assert_allclose(found, [mean_of("cat") / np.linalg.norm(mean_of("cat"))], rtol=1e-5)
    status, _, body = server.request("POST", "/embed", b'{"inputs": "x", "normalize": false, "dimensions": 2}')
    assert status == 200
    assert np.linalg.norm(json.loads(body)) == pytest.approx(1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b'{"inputs": 5}', b'{"inputs": ["\\ud800"]}'])
def test_bodies_that_are_no_texts_are_refused(server: ServerProcess, body: bytes) -> None:
    for path in ("/embed", "/predict", "/rerank", "/v1/embeddings", "/v1/rerank"):
        assert server.request("POST", path, body)[0] == 400


@pytest.mark.parametrize("model", ["classifier", "embedder", "filler", "ranker"])
def test_sample_requests_fit_the_task(server: ServerProcess, model: str) -> None:
    inputs = server.json("GET", f"/v2/models/{model}/request")["inputs"]
    tensors = [{**each, "data": [each.pop("value")]} for each in inputs]
    assert server.json("POST", f"/v2/models/{model}/infer", {"inputs": tensors})["outputs"]
