"""Folders of the Hub, served as they are, asked by the clients that people have for other servers."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import requests
from huggingface_hub import InferenceClient
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess
from tests.hub_folders import LONGEST, head_of, ids_of, mean_of, write_folder
from tests.text_answers import RECORDED, Row
from tests.text_answers import write_folder as write_recorded
from tests.unit.backend_serving import parameter
from trident.core.http.text_routes import MEMBERS
from trident.core.inference.tensors import Array

LABELS = ("POSITIVE", "NEGATIVE")


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("text")
    repository = folder / "models"
    write_folder(repository / "embedder")
    prompts = {"prompts": {"query": "who "}}
    (repository / "embedder" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    for name, files in (("nli", {}), ("reader", {}), ("tagger", {})):
        kind = {"nli": "classifier"}.get(name, name)
        write_recorded(repository / name, Row(name=name, kind=kind, inputs={}, files=files))
    (repository / "nli" / "config.pbtxt").write_text(
        'backend: "text"\n' + parameter("task", "zero-shot-classification")
    )
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
    assert [model.id for model in client.models.list()] == [
        "classifier",
        "embedder",
        "filler",
        "nli",
        "ranker",
        "reader",
        "tagger",
    ]
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


def test_texts_beyond_the_batch_size_are_split_into_requests(client: Any) -> None:
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
        ({"model": "classifier", "input": "cat"}, 400, "gives no embeddings of texts"),
        ({"model": "ranker", "input": "cat"}, 400, "gives no embeddings of texts"),
    ],
)
def test_openai_gets_errors_in_its_form(client: Any, arguments: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(**arguments)
    assert caught.value.status_code == status
    assert message in caught.value.body["message"]


def test_openai_gets_the_hint_beside_the_message(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="embeder", input="cat")
    assert caught.value.body["hint"] == "did you mean 'embedder'?"


def test_openai_reads_in_the_message_which_route_exists(server: ServerProcess, client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/responses does not exist: /v1/chat/completions takes chats"):
        client.responses.create(model="embedder", input="cat")
    with openai.OpenAI(base_url=f"http://{server.address}", api_key="none", max_retries=0) as bare:
        with pytest.raises(openai.NotFoundError, match="/v1/chat/completions is the path: end base_url with /v1"):
            bare.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "cat"}])
        with pytest.raises(openai.NotFoundError, match="/v1/models is the path"):
            bare.models.list()


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


def unit(vector: Array) -> Array:
    return np.asarray(vector / np.linalg.norm(vector))


def test_clients_of_text_embeddings_inference_are_answered(server: ServerProcess) -> None:
    hub = InferenceClient(model=f"http://{server.address}/embed")
    np.testing.assert_allclose(hub.feature_extraction("good cat"), [unit(mean_of("good cat"))], rtol=1e-5)
    cosines = server.json(
        "POST", "/similarity", {"inputs": {"source_sentence": "cat", "sentences": ["dog", "cat"]}, "model": "embedder"}
    )
    np.testing.assert_allclose(cosines, [unit(mean_of("cat")) @ unit(mean_of("dog")), 1], rtol=1e-5)
    described = server.json("GET", "/info")
    assert (described["model_id"], described["model_type"]) == ("embedder", {"embedding": {}})
    assert server.request("POST", "/tokenize", b'{"inputs": "cat"}')[0] == 501


@pytest.mark.parametrize(
    ("inputs", "texts", "is_one"),
    [
        ("good cat", [("good cat",)], True),
        (["good cat"], [("good cat",)], True),
        (["bad", "cat"], [("bad", "cat")], True),
        ([["bad"], ["cat"]], [("bad",), ("cat",)], False),
        ([["bad", "cat"], ["dog"]], [("bad", "cat"), ("dog",)], False),
    ],
)
def test_predict_takes_texts_and_pairs(server: ServerProcess, inputs: Any, texts: Any, is_one: bool) -> None:
    asked = {"inputs": inputs, "model": "classifier", "raw_scores": True, "parameters": {}}  # as huggingface_hub has it
    found = server.json("POST", "/predict", asked)
    for row, pair in zip([found] if is_one else found, texts, strict=True):
        logits = dict(zip(LABELS, mean_of(*pair) @ head_of(len(LABELS)), strict=True))
        assert {each["label"]: each["score"] for each in row} == pytest.approx(logits, rel=1e-4)
        assert row[0]["score"] >= row[1]["score"]


# What the bodies of these routes have in the servers that they are for, by route: OpenAI, vLLM and text-embeddings-
# inference; Cohere's v1 and v2, Jina AI, vLLM and infinity.
DOCUMENTED = {
    "/v1/embeddings": """input dimensions encoding_format model user add_special_tokens truncate_prompt_tokens priority
        request_id mm_processor_kwargs messages normalize use_activation embed_dtype endianness cache_salt input_type
        modality task late_chunking embedding_type""",
    "/v1/embed": "model texts images input_type embedding_types truncate",
    "/v2/embed": """model texts images inputs input_type embedding_types truncate max_tokens output_dimension
        priority""",
    "/v1/rerank": """query documents top_n return_documents rank_fields max_chunks_per_doc max_tokens_per_doc priority
        relevant_spans truncate truncation raw_scores truncate_prompt_tokens use_activation activation softmax
        mm_processor_kwargs add_special_tokens request_id""",
    "/embed": "inputs dimensions normalize prompt_name truncate truncation_direction texts",
    "/predict": "inputs raw_scores truncate truncation_direction texts",
    "/rerank": "query texts raw_scores return_text truncate truncation_direction",
    "/similarity": "inputs parameters prompt_name normalize",
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "embedder", "input": "cat"},
    "/v1/embed": {"texts": ["cat"]},
    "/v2/embed": {"texts": ["cat"]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/embed": {"inputs": "cat"},
    "/predict": {"inputs": "cat", "model": "classifier"},
    "/rerank": {"query": "a", "texts": ["b"]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
}


@pytest.mark.parametrize("route", [*MEMBERS, "/v2/rerank"])
def test_unsupported_members_are_refused_by_name(server: ServerProcess, route: str) -> None:
    table = route if route in MEMBERS else route.replace("v2", "v1")
    for name in sorted({*DOCUMENTED[table].split(), "nonsense"} - MEMBERS[table]):
        status, _, body = server.request("POST", route, json.dumps({**BODIES[table], name: 3}).encode())
        assert (status, f"'{name}' is not supported here" in body.decode()) == (400, True), name


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": 1}, "'raw_scores' must be true or false"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "return_documents": "no"}, "must be true or false"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"], "c": 1}}, "'c' is not supported here"),
        ("/embed", {"inputs": ["cat", ""]}, "item 1 of 'inputs' cannot be an empty string"),
        ("/embed", {"inputs": "cat " * 99, "truncate": False}, "more than the 32 tokens that the model takes"),
        ("/embed", {"inputs": "cat", "truncation_direction": "up"}, 'is "up", not one of left, right'),
        ("/embed", {"inputs": "cat", "prompt_name": "none"}, "the model has no prompt 'none'"),
        ("/embed", {"inputs": "cat", "dimensions": 9}, "the model's vectors have 4"),
        ("/v1/embed", {"texts": ["cat"], "input_type": "clustering"}, "the model has no prompt 'clustering'"),
        ("/v1/embed", {"texts": ["cat"], "input_type": "image"}, "not one of search_query, search_document"),
        ("/v2/embed", {"texts": ["cat"], "embedding_types": ["int8"]}, 'has "int8", expected some of float, base64'),
        ("/v2/embed", {"texts": ["cat"], "truncate": "MIDDLE"}, "'truncate' must be one of NONE, START, END"),
        ("/v2/embed", {"texts": ["cat " * 99], "truncate": "NONE"}, "more than the 32 tokens that the model takes"),
        ("/embed", {"inputs": "cat", "late_chunking": True}, "'late_chunking' is not supported here"),
        ("/v1/embeddings", {"input": "cat", "input_type": "query"}, "'input_type' is not supported here"),
        ("/v1/embeddings", {"input": "cat", "modality": "image"}, "'modality' is 'image', expected 'text'"),
        ("/rerank", {"query": "a", "texts": ["b"], "top_k": 1}, "'top_k' is not supported here"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["x"]}, "'rank_fields' is not supported here"),
        ("/predict", {"inputs": ["a", "b", "c"], "model": "classifier"}, "a text, a pair of texts"),
        ("/", {"inputs": "cat", "model": "embedder", "parameters": {"seed": 1}}, "'seed' is not known for feature-ext"),
        ("/", {"inputs": "cat", "model": "embedder", "parameters": {"padding": "max_length"}}, "'padding' is"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    server: ServerProcess, path: str, options: dict[str, Any], message: str
) -> None:
    status, _, body = server.request("POST", path, json.dumps(options).encode())
    assert status == 400
    error = json.loads(body)["error"]
    assert message in (error["message"] if isinstance(error, dict) else error)


def test_options_of_embed_are_honoured(server: ServerProcess) -> None:
    usual = {"truncate": True, "truncation_direction": "Right", "prompt_name": None}
    found = server.json("POST", "/embed", {"inputs": [ids_of("cat")], "normalize": False, **usual})
    np.testing.assert_allclose(found, [mean_of("cat")], rtol=1e-5)
    found = server.json("POST", "/embed", {"inputs": "cat", "prompt_name": "query", "normalize": False})
    np.testing.assert_allclose(found, [mean_of("who cat")], rtol=1e-5)
    long = {"inputs": "dog " + "cat " * 40, "normalize": False}
    for side, first in (("left", "cat"), ("right", "dog")):
        (vector,) = server.json("POST", "/embed", {**long, "truncation_direction": side})
        np.testing.assert_allclose(vector, mean_of(f"{first} " + "cat " * 29), rtol=1e-5)
    (vector,) = server.json("POST", "/embed", {"inputs": "x", "dimensions": 2})
    assert np.linalg.norm(vector) == pytest.approx(1)


def test_lists_and_null_options_are_answered_as_by_pipelines(server: ServerProcess) -> None:
    def ask(model: str, inputs: Any, **parameters: Any) -> Any:
        return server.json("POST", "/", {"model": model, "inputs": inputs, "parameters": parameters})

    text = "cat [MASK]"
    one = ask("filler", text, top_k=2)
    assert ask("filler", [text], top_k=2) == one
    assert ask("filler", [text, text], top_k=2) == [one, one]
    assert ask("filler", text, top_k=None, targets=None) == ask("filler", text)
    asked = {"question": "who", "context": "anna lives in paris"}
    assert ask("reader", [asked]) == ask("reader", asked)
    assert ask("tagger", ["anna"], ignore_labels=None) == [ask("tagger", "anna")]
    mixed = [{"text": "cat", "text_pair": "dog"}, {"text": "cat"}]
    assert ask("classifier", mixed, top_k=None) == [ask("classifier", [each], top_k=None)[0] for each in mixed]


def test_the_client_of_cohere_gets_objects_of_models(server: ServerProcess) -> None:
    _, _, body = server.request("GET", "/v1/models", headers={"X-Fern-SDK-Name": "cohere"})
    assert [each["name"] for each in json.loads(body)["models"]] == server.json("GET", "/v1/models")["models"]


def test_the_client_of_cohere_gets_vectors_in_several_forms(server: ServerProcess) -> None:
    long = "dog " + "cat " * 40
    asked = {"model": "embedder", "texts": ["cat", long], "input_type": "search_query"}
    found = server.json("POST", "/v1/embed", {**asked, "truncate": "END"})
    expected = [mean_of("who cat"), mean_of("who dog " + "cat " * 28)]
    np.testing.assert_allclose(found["embeddings"], expected, rtol=1e-5)
    assert (found["response_type"], found["texts"]) == ("embeddings_floats", asked["texts"])
    assert found["meta"]["billed_units"]["input_tokens"] == len(ids_of("who cat")) + LONGEST
    forms = {"truncate": "START", "embedding_types": ["float", "base64", "binary", "ubinary"]}
    found = server.json("POST", "/v2/embed", {**asked, **forms})["embeddings"]
    expected[1] = mean_of("cat " * 30)
    np.testing.assert_allclose(found["float"], expected, rtol=1e-5)
    assert [np.frombuffer(base64.b64decode(each), "<f4").tolist() for each in found["base64"]] == found["float"]
    bits = ["".join(str(int(number > 0)) for number in vector) + "0000" for vector in expected]
    assert found["ubinary"] == [[int(each, 2)] for each in bits]
    assert found["binary"] == [[int(each, 2) - 128] for each in bits]
    short = server.json("POST", "/v2/embed", {"texts": ["cat"], "output_dimension": 2, "model": "embedder"})
    np.testing.assert_allclose(short["embeddings"]["float"], [unit(mean_of("cat")[:2])], rtol=1e-5)
    (document,) = server.json("POST", "/v1/embed", {"texts": ["cat"], "input_type": "search_document"})["embeddings"]
    np.testing.assert_allclose(document, mean_of("cat"), rtol=1e-5)
    infinity = server.json("POST", "/embeddings", {"model": "embedder", "input": ["cat"]})
    np.testing.assert_allclose(infinity["data"][0]["embedding"], mean_of("cat"), rtol=1e-5)


def test_reranking_is_answered_in_the_forms_of_other_servers(server: ServerProcess) -> None:
    logits = {text: (mean_of("who", text) @ head_of(1)).item() for text in ("anna", "cat")}
    asked = {"query": "who", "documents": list(logits)}
    (result,) = server.json("POST", "/v1/rerank", {"query": "who", "documents": ["cat"], "raw_scores": True})["results"]
    assert result["relevance_score"] == pytest.approx(logits["cat"], rel=1e-4)
    label = {"label": "LABEL_0", "score": pytest.approx(1 / (1 + np.exp(-logits["cat"])), rel=1e-4)}
    assert server.json("POST", "/predict", {"inputs": [["who", "cat"]], "model": "ranker"}) == [[label]]
    equal = server.json("POST", "/rerank", {"query": "who", "texts": ["cat", "cat"]})
    assert [each["index"] for each in equal] == [1, 0]
    for path, shows in (("/v1/rerank", True), ("/v2/rerank", False), ("/rerank", False)):
        more = {"return_documents": True} if path == "/rerank" else {}
        results = server.json("POST", path, {**asked, **more})["results"]
        assert [("document" in each) for each in results] == [shows, shows]
        assert {list(logits)[each["index"]]: each["relevance_score"] for each in results} == pytest.approx(
            {text: 1 / (1 + np.exp(-logit)) for text, logit in logits.items()}, rel=1e-4
        )
    assert len(server.json("POST", "/rerank", {"query": "who", "texts": list(logits), "top_n": 1})) == 1
    found = server.json("POST", "/rerank", {"query": "who", "texts": list(logits), "raw_scores": True})
    assert {list(logits)[each["index"]]: each["score"] for each in found} == pytest.approx(logits, rel=1e-4)


def test_hub_client_uses_the_address_of_a_single_model_server(tmp_path: Path) -> None:
    write_folder(tmp_path / "models" / "embedder")
    distance = json.dumps({"similarity_fn_name": "euclidean"})
    (tmp_path / "models" / "embedder" / "config_sentence_transformers.json").write_text(distance)
    sagemaker, vertex, azureml = free_ports(3)
    options = ("--platform=plain", "--allow-sagemaker=true", f"--sagemaker-port={sagemaker}", "--allow-vertex-ai=true")
    options += (f"--vertex-ai-port={vertex}", "--allow-azureml=true", f"--azureml-port={azureml}")
    environment = {**os.environ, "AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
    with ServerProcess(
        tmp_path / "models", tmp_path / "log", "--shutdown-grace-secs=0", *options, environment=environment
    ) as server:
        hub = InferenceClient(model=f"http://{server.address}")
        np.testing.assert_allclose(hub.feature_extraction("cat", normalize=True), [unit(mean_of("cat"))], rtol=1e-5)
        distances = hub.sentence_similarity("cat", ["dog"])
        for door in (f"{sagemaker}/invocations", f"{vertex}/predict", f"{azureml}/score"):
            url, vector = f"http://127.0.0.1:{door}", [pytest.approx(mean_of("cat").tolist(), rel=1e-5)]
            assert requests.post(url, json={"text_inputs": ["cat"]}).json() == {"embedding": vector}
            assert requests.post(url, json={"inputs": "cat"}).json() == vector
            many = {"instances": [{"inputs": "cat"}, {"inputs": ["cat", "cat"]}]}
            assert requests.post(url, json=many).json() == {"predictions": [vector, vector * 2]}
            tensor: Any = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["cat"]}
            assert requests.post(url, json={"inputs": [tensor]}).json()["outputs"][0]["data"] == vector[0]
            columns = requests.post(url, json={"inputs": {"text": ["cat"]}}).json()
            assert columns["outputs"]["embedding"] == vector
            assert requests.post(url, data=b"", headers={"Content-Type": "text/plain"}).status_code >= 400
        assert distances == pytest.approx([-np.linalg.norm(mean_of("cat") - mean_of("dog"))], rel=1e-5)


def test_hub_client_reads_answers_of_other_tasks(tmp_path: Path) -> None:
    for name, kind in (("nli", "classifier"), ("reader", "reader")):
        write_recorded(tmp_path / "models" / name, Row(name=name, kind=kind, inputs={}))
    write_folder(tmp_path / "models" / "labels", "BertForSequenceClassification", labels=LABELS)
    config = 'backend: "text"\n' + parameter("task", "zero-shot-classification")
    (tmp_path / "models" / "nli" / "config.pbtxt").write_text(config)
    with ServerProcess(tmp_path / "models", tmp_path / "log", "--model-control-mode=explicit") as server:
        hub = InferenceClient(model=f"http://{server.address}")
        server.json("POST", "/v2/repository/models/nli/load", {})
        labels = hub.zero_shot_classification(CAT, ["cat", "blue book", "a"])
        (expected,) = [each for each in recorded("several labels") if each["sequence"] == CAT]
        assert [each.label for each in labels] == expected["labels"]
        assert [each.score for each in labels] == pytest.approx(expected["scores"], rel=1e-4)
        server.json("POST", "/v2/repository/models/nli/unload", {})
        server.json("POST", "/v2/repository/models/reader/load", {})
        answer: Any = hub.question_answering(question="who lives in paris ?", context=STORY)
        assert answer.answer == recorded("answer")[0]["answer"]
        server.json("POST", "/v2/repository/models/reader/unload", {})
        server.json("POST", "/v2/repository/models/labels/load", {})
        found: Any = hub.text_classification("cat", top_k=2)
        assert {each.label: each.score for each in found} == pytest.approx(
            dict(zip(LABELS, softmax("cat"), strict=True)), rel=1e-4
        )


def recorded(name: str) -> Any:
    return json.loads(RECORDED.read_text())[name]["answer"]


def rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return round(value, 3) if isinstance(value, float) else value


CAT, MANY = "a cat sat", "a cat sat on the mat"
STORY = "anna lives in paris and who sat on the mat is in berlin . the unhappy cats lives in paris ."


@pytest.mark.parametrize(
    ("model", "inputs", "parameters", "name"),
    [
        ("nli", CAT, {"candidate_labels": "cat,blue book,a"}, "several labels"),
        ("nli", [CAT], {"candidate_labels": ["cat", "mat"], "multi_label": True}, "any label"),
        ("tagger", [STORY], {}, "entities by default"),
        ("tagger", [STORY], {"ignore_labels": ["PER"], "aggregation_strategy": "simple"}, "other labels"),
        ("reader", [{"question": "who lives in paris ?", "context": STORY}], {"top_k": 3}, "three answers"),
        ("reader", {"question": "who lives in paris ?", "context": STORY}, {}, "answer"),
    ],
)
def test_root_route_answers_as_pipelines(
    server: ServerProcess, model: str, inputs: Any, parameters: dict[str, Any], name: str
) -> None:
    found = server.json("POST", "/", {"model": model, "inputs": inputs, "parameters": parameters})
    # The pipeline of questions answers a list of one as the one.
    is_listed = isinstance(inputs, list) and model != "reader"
    assert rounded(found) == rounded(recorded(name) if is_listed else recorded(name)[0])


def test_equal_scores_are_ordered_as_by_the_pipeline(server: ServerProcess) -> None:
    options = {"candidate_labels": ["unknown", "also", "cat"], "multi_label": True}
    found = server.json("POST", "/", {"model": "nli", "inputs": CAT, "parameters": options})
    assert [label for label in found["labels"] if label != "cat"] == ["also", "unknown"]


def test_labels_have_the_form_of_the_pipeline(server: ServerProcess) -> None:
    scores = dict(zip(LABELS, softmax("cat"), strict=True))
    best = max(scores, key=lambda label: scores[label])

    def ask(inputs: Any, **parameters: Any) -> Any:
        answer = server.json("POST", "/", {"model": "classifier", "inputs": inputs, "parameters": parameters})
        return rounded(answer)

    label = rounded({"label": best, "score": float(scores[best])})
    assert ask("cat") == [label]
    assert ask(["cat", "cat"]) == [label, label]
    assert ask({"text": "cat"}) == label
    assert ask([{"text": "cat"}]) == [label]
    assert ask("cat", top_k=1) == [label]
    assert len(ask("cat", top_k=None)) == 2
    assert [[each["label"] for each in row] for row in ask("cat", return_all_scores=True)] == [list(LABELS)]
    assert ask(["cat"], top_k=2, function_to_apply="none")[0][0]["label"] == best


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b'{"inputs": 5}', b'{"inputs": ["\\ud800"]}'])
def test_non_text_bodies_are_refused(server: ServerProcess, body: bytes) -> None:
    for path in ("/", "/embed", "/predict", "/rerank", "/similarity", "/v1/embeddings", "/v1/rerank", "/v2/rerank"):
        assert server.request("POST", path, body)[0] == 400


@pytest.mark.parametrize("model", ["classifier", "embedder", "filler", "nli", "ranker", "reader", "tagger"])
def test_sample_requests_fit_the_task(server: ServerProcess, model: str) -> None:
    inputs = server.json("GET", f"/v2/models/{model}/request")["inputs"]
    tensors = [{**each, "data": [each.pop("value")]} for each in inputs]
    assert server.json("POST", f"/v2/models/{model}/infer", {"inputs": tensors})["outputs"]
