"""Text models over the routes of other servers, so that the clients of those work as they are.

    /v1/embeddings, /v1/models                       OpenAI; /embeddings infinity
    /v1/rerank, /v2/rerank                           Jina AI, Cohere and vLLM
    /v1/embed, /v2/embed                             Cohere
    /embed, /rerank, /predict, /similarity, /info    text-embeddings-inference
    /                                                huggingface_hub, at the address of a server

Models of the backend `text` have the tensors that these routes need; so may any other. A request that names no model
is for the only one that has them. A member of a body is honoured, or refused by name.
Source: docs/text-models.md; the API references of OpenAI, Jina AI and Cohere; the router of text-embeddings-inference;
transformers' pipelines.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np
import orjson

from trident.core.config.platforms import TEXT as TEXT_BACKEND
from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest, ServerError, Unsupported
from trident.core.frontend.dataplane import one_response
from trident.core.http.body import too_large
from trident.core.http.dataplane import off_hub, read_body, run, run_many
from trident.core.http.errors import (
    REQUEST_ID_KEY,
    HttpError,
    RouteNotFound,
    error_document,
    extra_headers,
    log_error,
)
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.reply import TEXT as TEXT_PLAIN
from trident.core.http.reply import Environ, Reply, header_of, json_reply, text_reply
from trident.core.inference.request import LATEST, InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import BYTES, Array, Buffer, bytes_array
from trident.core.lifecycle.state import REGISTERED

# The tensors, as the backend `text` calls them.
TEXT, TEXT_PAIR, QUERY, LABELS = "text", "text_pair", "query", "candidate_labels"
EMBEDDING, TOKENS, SCORE, SCORES, ANSWER = "embedding", "tokens", "score", "scores", "answer"

# Begins an element that is token ids for the backend `text`, INT32 in little-endian order. No UTF-8 text has its first
# byte.
_IDS = b"\xffids"
# A request with more would keep the model from others for minutes.
_MOST_TEXTS = 1 << 16
# The input of a text model with the options of each text, as JSON.
_OPTIONS = "parameters"
_CUT = frozenset({"truncate", "truncation_direction"})
MEMBERS: Mapping[str, frozenset[str]] = {
    "/v1/embeddings": frozenset({"model", "input", "encoding_format", "dimensions", "user", "modality"}),
    "/v1/embed": frozenset({"model", "texts", "input_type", "embedding_types", "truncate"}),
    "/v2/embed": frozenset({"model", "texts", "input_type", "embedding_types", "truncate", "output_dimension"}),
    "/v1/rerank": frozenset({"model", "query", "documents", "top_n", "return_documents", "raw_scores", "user"}),
    "/embed": _CUT | {"model", "inputs", "normalize", "dimensions", "prompt_name"},
    "/predict": _CUT | {"model", "inputs", "raw_scores"},
    "/rerank": _CUT | {"model", "query", "texts", "raw_scores", "return_text", "prompt_name", "top_n"},
    "/similarity": frozenset({"model", "inputs", "parameters"}),
}
"""The members of the bodies of each route."""
NOT_SUPPORTED = ("tokenize", "decode", "embed_all", "embed_sparse")
"""Routes of text-embeddings-inference whose answers are the tokenizer's, or those of other kinds of models."""
WITHOUT_V1 = {"chat": "/chat/completions", "completions": "/completions", "models": "/models"}
"""OpenAI's routes as a client asks for them whose `base_url` lacks `/v1`."""
PIPELINE: Mapping[str, frozenset[str]] = {
    EMBEDDING: frozenset({"dimensions"}),
    SCORES: frozenset({"top_k", "return_all_scores"}),
    LABELS: frozenset({LABELS}),
}
"""Parameters of pipelines that are read here, by what the model has; the model reads its own."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "padding": (True, False, "longest", "do_not_pad"),
    "truncation": (True, "longest_first"),
    "use_cache": (True, False),
    "wait_for_model": (True, False),
    "encoding_format": ("float",),
}
"""Members without effect on an answer, and the values that are taken."""
COUNTS = ("batch_size", "num_workers")
"""How many texts a pipeline takes at once."""
VERSION_KEY = "trident.text_version"
"""The environ's key of the version that a platform's request asks for."""
ReadInstances = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the members that a platform reserves out of a document with `instances`. Raises InvalidRequest."""
# A text for each row, or several; bytes are token ids.
Texts = Sequence[str | bytes] | Sequence[list[str]]
# An error's `type` in OpenAI's form, by its status; all others are `server_error`.
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


# --- the routes


def models(front_end: HttpFrontEnd, environ: Environ, model: str = "") -> Reply:
    """The models that are ready or registered, `GET /v1/models`, or one of them, `/v1/models/NAME`, as OpenAI and
    KServe have it."""
    if model:
        front_end.engine.model(model)
        return json_reply(_model_object(model, is_ready=True))
    ready = set(ready_models(front_end))
    known = ready
    if front_end.options.control_mode == "demand":
        index = front_end.bridge.run(front_end.engine.repository_index, False)
        known = ready | {entry.name for entry in index if entry.reason == REGISTERED}
    data = [_model_object(name, is_ready=name in ready) for name in sorted(known)]
    # Cohere's client reads objects where KServe's reads names.
    is_cohere = header_of(environ, "x-fern-sdk-name") == "cohere"
    names = [{"name": name} if is_cohere else name for name in sorted(known)]
    return json_reply({"object": "list", "data": data, "models": names})


def rerank_documents(front_end: HttpFrontEnd, environ: Environ, *, with_documents: bool) -> Reply:
    """`POST /v1/rerank`: documents in the order of their relevance for a query. Cohere's `/v2/rerank` leaves the
    documents out, unless they are asked for."""
    return _documents_ranked(front_end, environ, read_object(front_end, environ), with_documents=with_documents)


def _documents_ranked(front_end: HttpFrontEnd, environ: Environ, body: dict[str, Any], with_documents: bool) -> Reply:
    _refuse_unknown(body, MEMBERS["/v1/rerank"])
    documents = [each.get(TEXT) if isinstance(each, dict) else each for each in _list(body, "documents")]
    texts = _strings(documents, "documents")
    model = _model_with(front_end, _name(body), SCORE)
    raw = {"raw_scores": True} if flag(body, "raw_scores", False) else {}
    queries = _strings([body.get(QUERY)], QUERY) * len(texts)
    scores, tokens = _scores(front_end, environ, model, queries, texts, raw)
    order = _best_first(scores)[: _count(body, "top_n", len(texts))]
    shown = flag(body, "return_documents", with_documents)
    results = [
        {"index": at, "relevance_score": float(scores[at])} | ({"document": {TEXT: texts[at]}} if shown else {})
        for at in order
    ]
    return json_reply(
        {"id": uuid4().hex, "object": "list", "model": model.spec.name, "usage": tokens, "results": results}
    )


def embed_of_cohere(front_end: HttpFrontEnd, environ: Environ, *, version: str) -> Reply:
    """Cohere's `POST /v1/embed`: the vectors of `texts`, or with `embedding_types` several forms of them by name, as
    always with `/v2/embed`."""
    body = read_object(front_end, environ)
    _refuse_unknown(body, MEMBERS[f"/v{version}/embed"])
    texts = _strings(_list(body, "texts"), "texts")
    types = body.get("embedding_types")
    names = ["float"] if types is None else _list(body, "embedding_types")
    for name in names:
        if not isinstance(name, str) or name not in _EMBEDDING_TYPES:
            raise InvalidRequest(
                f"'embedding_types' has {orjson.dumps(name).decode()}, expected some of {', '.join(_EMBEDDING_TYPES)}"
            )
    cut = body.get("truncate")
    if cut is not None and (not isinstance(cut, str) or cut not in _COHERE_CUTS):
        raise InvalidRequest(f"'truncate' must be one of {', '.join(_COHERE_CUTS)}")
    model, given, output = _embedding_model(front_end, _name(body), texts)
    wanted = (output, TOKENS) if TOKENS in model.spec.outputs else (output,)
    options = _given(body, {"input_type"}) | (_COHERE_CUTS[cut] if cut is not None else {})
    found = _run(front_end, environ, model, {given: texts}, wanted, options)
    vectors = _as_asked(found[output], {"dimensions": body.get("output_dimension")})
    is_plain = version == "1" and types is None
    made: Any = vectors.tolist() if is_plain else {name: _EMBEDDING_TYPES[name](vectors) for name in names}
    return json_reply(
        {
            "id": uuid4().hex,
            "response_type": "embeddings_floats" if is_plain else "embeddings_by_type",
            "embeddings": made,
            "texts": texts,
            "meta": {
                "api_version": {"version": version},
                "billed_units": {"input_tokens": _usage(found)["total_tokens"]},
            },
        }
    )


# Cohere's forms of vectors that follow from the vectors alone; a bit is 1 where a number is above 0.
_EMBEDDING_TYPES: Mapping[str, Callable[[Array], list[Any]]] = {
    "float": lambda vectors: vectors.tolist(),
    "base64": lambda vectors: [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors],
    "binary": lambda vectors: (np.packbits(vectors > 0, axis=1).astype(np.int16) - 128).tolist(),
    "ubinary": lambda vectors: np.packbits(vectors > 0, axis=1).tolist(),
}
_COHERE_CUTS: Mapping[str, dict[str, Any]] = {
    "NONE": {"truncate": False},
    "START": {"truncate": True, "truncation_direction": "left"},
    "END": {"truncate": True, "truncation_direction": "right"},
}


def embed(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /embed`: a list of vectors, of length 1 unless `normalize` is false."""
    body = read_object(front_end, environ)
    _refuse_unknown(body, MEMBERS["/embed"])
    texts = _texts_or_ids(body, "inputs")
    model, name, output = _embedding_model(front_end, _name(body), texts)
    options = _given(body, _CUT | {"prompt_name"})
    vectors = _run(front_end, environ, model, {name: texts}, (output,), options)[output]
    return json_reply(_as_asked(vectors, {"normalize": True} | _given(body, {"normalize", "dimensions"})).tolist())


def similarity(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /similarity`: how alike sentences are to a source sentence: cosines, unless the model says otherwise."""
    body = read_object(front_end, environ)
    _refuse_unknown(body, MEMBERS["/similarity"])
    return json_reply(_similarities(front_end, environ, _name(body), body.get("inputs"), _parameters(body)))


def _similarities(
    front_end: HttpFrontEnd, environ: Environ, name: str, inputs: Any, options: Mapping[str, Any]
) -> list[float]:
    if not isinstance(inputs, dict) or not isinstance(inputs.get("source_sentence"), str):
        raise InvalidRequest("'inputs' must be an object with 'source_sentence', a text, and 'sentences', a list")
    _refuse_unknown(inputs, frozenset({"source_sentence", "sentences"}))
    sentences = _strings(_list(inputs, "sentences"), "sentences")
    texts = [inputs["source_sentence"], *sentences]
    model, given, output = _embedding_model(front_end, name, texts)
    vectors = _run(front_end, environ, model, {given: texts}, (output,), options)[output].astype(np.float32)
    config = front_end.bridge.run(front_end.engine.model_config(model.spec.name).parse)
    kind = config.parameters["similarity_fn_name"].string_value
    return _SIMILARITIES.get(kind, _cosines)(vectors[0], vectors[1:]).tolist()  # type: ignore[no-any-return]


def _cosines(one: Array, others: Array) -> Array:
    lengths = np.linalg.norm(one) * np.linalg.norm(others, axis=1)
    return np.asarray(others @ one / np.maximum(lengths, 1e-12))


# By the parameter `similarity_fn_name`, as sentence-transformers compares vectors; distances are negative.
_SIMILARITIES: Mapping[str, Callable[[Array, Array], Array]] = {
    "dot": lambda one, others: others @ one,
    "euclidean": lambda one, others: np.asarray(-np.linalg.norm(others - one, axis=1)),
    "manhattan": lambda one, others: np.asarray(-np.abs(others - one).sum(axis=1)),
}


def rerank(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /rerank`: the indices of texts with their scores, the best first; `documents` as Jina AI ranks them.

    The scores are between 0 and 1 unless `raw_scores` is true.
    """
    body = read_object(front_end, environ)
    if "documents" in body:
        # infinity has this route, and answers documents as texts; vLLM has it, too, and answers objects.
        return _documents_ranked(front_end, environ, body | {"return_documents": False}, with_documents=False)
    _refuse_unknown(body, MEMBERS["/rerank"])
    return json_reply(_ranked(front_end, environ, _model_with(front_end, _name(body), SCORE), body))


def predict(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /predict`: the labels of one text or pair with their scores, the best first; or a list of that for several.

    A list of texts is one text, or one pair; a list of such lists is several.
    """
    body = read_object(front_end, environ)
    _refuse_unknown(body, MEMBERS["/predict"])
    inputs = body.get("inputs")
    model = _labelling_model(front_end, _name(body))
    ranks = SCORES not in model.spec.outputs
    listed = [[inputs]] if isinstance(inputs, str) else _list(body, "inputs")
    is_several = isinstance(listed[0], list) and not isinstance(inputs, str)
    rows = listed if isinstance(listed[0], list) else [listed]
    if not all(isinstance(row, list) and len(row) in (1, 2) for row in rows):
        raise InvalidRequest("'inputs' must be a text, a pair of texts, or a list of lists of one or two texts")
    rows = [_strings(row, "inputs") for row in rows]
    options = _given(body, _CUT)
    is_raw = flag(body, "raw_scores", False)
    if ranks:
        if not all(len(row) == 2 for row in rows):
            raise InvalidRequest(f"model '{model.spec.name}' ranks: 'inputs' must be pairs of texts")
        queries, texts = zip(*rows, strict=True)
        scores = _unit_scores(front_end, environ, model, queries, texts, options, is_raw)
        # The name that transformers gives the only label.
        ranked = [[{SCORE: float(each), "label": "LABEL_0"}] for each in scores]
        return json_reply(ranked if is_several else ranked[0])
    options |= {"function_to_apply": "none"} if is_raw else {}
    found: list[Any] = [None] * len(rows)
    for size in (1, 2):
        indices = [at for at, row in enumerate(rows) if len(row) == size]
        if indices:
            tensors: dict[str, Texts] = {TEXT: [rows[at][0] for at in indices]}
            if size == 2:
                tensors[TEXT_PAIR] = [rows[at][1] for at in indices]
            scores = _run(front_end, environ, model, tensors, (SCORES,), options)[SCORES]
            for at, row in zip(indices, scores, strict=True):
                found[at] = _labelled(model.spec, row, _last_of_ties_first)
    return json_reply(found if is_several else found[0])


def _labelling_model(front_end: HttpFrontEnd, name: str) -> ServedModel:
    """The model that classifies, or the one that ranks if it is named, or the only one. Raises InvalidRequest."""
    try:
        return _model_with(front_end, name, SCORES)
    except InvalidRequest:
        model = front_end.engine.model(name) if name else _model_with(front_end, "", "")
        if SCORE not in model.spec.outputs:
            raise
        return one_response(model)


def info(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`GET /info`: the only text model that is ready, in the members of text-embeddings-inference that are known here.

    Raises InvalidRequest if there is none, or several.
    """
    for output, kind in ((EMBEDDING, "embedding"), (SCORES, "classifier"), (SCORE, "reranker")):
        try:
            spec = _model_with(front_end, "", output).spec
        except InvalidRequest:
            continue
        names = {str(at): label for at, label in enumerate(spec.outputs[output].labels or ())}
        labels = {"id2label": names, "label2id": {label: int(at) for at, label in names.items()}} if names else {}
        return json_reply(
            {
                "model_id": spec.name,
                "served_model_name": spec.name,
                "model_type": {kind: labels},
                "max_client_batch_size": _MOST_TEXTS,
                "version": front_end.engine.server_metadata().version,
            }
        )
    raise InvalidRequest("no text model is ready, or several are", hint="GET /v1/models lists the models")


def pipeline_at_the_root(front_end: HttpFrontEnd, environ: Environ, body: dict[str, Any]) -> Reply:
    """The answer of the only text model, or the one that `body` names, in the form of its pipeline."""
    if isinstance(body.get("inputs"), dict) and "source_sentence" in body["inputs"]:
        return json_reply(_similarities(front_end, environ, _name(body), body["inputs"], _parameters(body)))
    if "query" in body:
        return json_reply(_ranked(front_end, environ, _model_with(front_end, _name(body), SCORE), body))
    name = _name(body)
    model = one_response(front_end.engine.model(name)) if name else _model_with(front_end, "", "")
    answer = _pipeline_answer(front_end, environ, model, body)
    is_new = re.search("hf_hub/[1-9]", header_of(environ, "user-agent") or "")
    # That client reads the labels of the Hub's own service, which has them in other forms than the pipelines.
    if is_new and SCORES in model.spec.outputs and isinstance(answer, list) and isinstance(body.get("inputs"), str):
        answer = [answer]
    elif is_new and isinstance(answer, dict) and "labels" in answer:
        answer = [
            {"label": label, SCORE: score} for label, score in zip(answer["labels"], answer["scores"], strict=True)
        ]
    return json_reply(answer)


def other_apis(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """OpenAI's `/v1/responses`, Anthropic's `/v1/messages`, and Cohere's `/v1/chat` and `/v2/chat`.

    Those of `WITHOUT_V1`, too. The message has what to do, as OpenAI's client shows nothing else.
    """
    path = str(environ.get("PATH_INFO"))
    has_version = path.startswith(("/v1/", "/v2/"))
    cure = "/v1/chat/completions takes chats" if has_version else f"/v1{path} is the path: end base_url with /v1"
    raise RouteNotFound(message=f"{path} does not exist: {cure}")


def not_here(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """Refuse a route of `NOT_SUPPORTED`."""
    raise Unsupported(
        f"{environ.get('PATH_INFO')} is not supported",
        hint="/embed, /similarity, /predict, /rerank and /info are; /v1/embeddings counts tokens in its usage",
    )


# --- the form of Hugging Face's containers


def hugging_face(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, read_instances: ReadInstances | None
) -> Reply | None:
    """The answer to `{"inputs": …, "parameters": …}`, or to lines of that, in the form of transformers' pipelines.

    Plain text is a text in each line. None for a body of another form. Raises ServerError.
    """
    if str(environ.get("CONTENT_TYPE") or "").partition(";")[0].strip().lower() == TEXT_PLAIN:
        return _line_replies(front_end, environ, model, off_hub(front_end, len(body), _plain_lines, body))
    documents, is_lines = off_hub(front_end, len(body), _documents, body)
    if not documents:
        return None
    if not is_lines and isinstance(documents[0], dict):
        document = documents[0]
        if "text_inputs" in document:
            return _embedded_texts(front_end, environ, model, document)
        instances = document.get("instances")
        if isinstance(instances, list) and instances and all(_is_of_pipeline(each) for each in instances):
            document = read_instances(document) if read_instances is not None else document
            shared = document.get("parameters")
            answers = [
                _pipeline_answer(front_end, environ, model, {"parameters": shared, **each})
                for each in document["instances"]
            ]
            return json_reply({"predictions": answers})
    if not all(_is_of_pipeline(document) for document in documents):
        return None
    if is_lines:
        return _line_replies(front_end, environ, model, documents)
    return json_reply(_pipeline_answer(front_end, environ, model, documents[0]))


def _plain_lines(body: Buffer) -> list[dict[str, Any]]:
    try:
        lines = bytes(body).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    return [{"inputs": line.removesuffix("\r")} for line in lines]


def _documents(body: Buffer) -> tuple[list[Any], bool]:
    """The JSON document in the body, or those in its lines and True; none if it has other text."""
    # The parser stops at a second document, so that of several lines it reads only the first twice.
    with suppress(ValueError):
        return [orjson.loads(body)], False
    with suppress(ValueError):
        documents = [orjson.loads(line) for line in bytes(body).splitlines() if line.strip()]
        return documents, len(documents) > 1
    return [], False


def _embedded_texts(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: dict[str, Any]) -> Reply:
    """The answer to the body that JumpStart's containers for embeddings take."""
    if EMBEDDING not in model.spec.outputs or body.get("mode") not in (None, "embedding"):
        raise InvalidRequest("'text_inputs' is for embeddings", hint="send 'inputs', and 'parameters'")
    _refuse_unknown(body, frozenset({"text_inputs", "mode"}))
    texts = body["text_inputs"] if isinstance(body["text_inputs"], list) else [body["text_inputs"]]
    return json_reply({"embedding": _pipeline_answer(front_end, environ, model, {"inputs": texts})})


def _line_replies(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, documents: list[dict[str, Any]]
) -> Reply:
    """A line of JSON for each of `documents`. Texts with the same parameters run together."""
    first = {**documents[0], "inputs": ""}
    are_alike = all(isinstance(each["inputs"], str) and {**each, "inputs": ""} == first for each in documents)
    if are_alike and len(documents) > 1:
        texts = [each["inputs"] for each in documents]
        rows = _pipeline_answer(front_end, environ, model, {**documents[0], "inputs": texts})
        # One text alone is answered with a list of one vector or label.
        options = _parameters(documents[0])
        is_listed = EMBEDDING in model.spec.outputs or (
            SCORES in model.spec.outputs and LABELS not in model.spec.inputs and "top_k" not in options
        )
        answers = [[row] for row in rows] if is_listed else rows
    else:
        answers = [_pipeline_answer(front_end, environ, model, document) for document in documents]
    return text_reply(200, b"\n".join(map(orjson.dumps, answers)), "application/jsonlines")


def _is_of_pipeline(document: Any) -> bool:
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if isinstance(inputs, list):
        kinds = {type(each) for each in inputs}
        return kinds == {str} or (kinds == {dict} and "datatype" not in inputs[0])  # those are of the v2 protocol
    # Lists by name are columns.
    return isinstance(inputs, str) or (
        isinstance(inputs, dict) and not all(isinstance(each, list) for each in inputs.values())
    )


def _parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a pipeline's call without those that change no answer. Raises InvalidRequest.

    huggingface_hub sends some beside `inputs`, and `options` for the Hub's own service.
    """
    found: dict[str, Any] = {}
    groups = ("parameters", "options", "tokenizer_kwargs")
    for group in groups:
        given = body.get(group, found.pop(group, None))
        if given is not None and not isinstance(given, dict):
            raise InvalidRequest(f"'{group}' is not an object")
        found |= given or {}
    found |= {name: value for name, value in body.items() if name not in ("inputs", "model", *groups)}
    if found.get("truncation") in (False, "do_not_truncate"):
        del found["truncation"]
        found["truncate"] = False
    for name in [*NEUTRAL, *COUNTS]:
        if name not in found:
            continue
        value = found.pop(name)
        known = NEUTRAL.get(name)
        if (value not in known) if known else type(value) is not int:
            raise InvalidRequest(f"the parameter '{name}' is {orjson.dumps(value).decode()}, which is not supported")
    return found


def _pipeline_answer(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: dict[str, Any]) -> Any:
    """The answer of the pipeline of the model's task to `inputs` with `parameters`."""
    spec, inputs = model.spec, body.get("inputs")
    options = _parameters(body)
    is_one = not isinstance(inputs, list)
    items: list[Any] = [inputs] if is_one else _list(body, "inputs")
    if SCORE in spec.outputs:
        if not is_one or not isinstance(inputs, dict):
            raise InvalidRequest("'inputs' must be an object with 'query' and 'texts'")
        return _ranked(front_end, environ, model, {**inputs, **options})
    output = next((name for name in (EMBEDDING, SCORES, ANSWER) if name in spec.outputs), "")
    own = [name for name, each in spec.inputs.items() if not each.optional and name != LABELS]
    tensors: dict[str, Texts] = {}
    if not output:
        raise InvalidRequest(f"model '{spec.name}' has none of the outputs {EMBEDDING}, {SCORES} and {ANSWER}")
    if all(isinstance(item, dict) for item in items):
        known = [name for name in (*own, TEXT_PAIR) if name in spec.inputs]
        for item in items:
            _refuse_unknown(item, frozenset(known))
        for name in known:
            if name in own or any(name in item for item in items):
                # An empty second text is none.
                tensors[name] = _strings([item.get(name, "" if name == TEXT_PAIR else None) for item in items], name)
    elif own == [TEXT]:
        tensors[TEXT] = _strings(items, "inputs")
    else:
        raise InvalidRequest(
            f"model '{spec.name}' takes {', '.join(own)}: send 'inputs' as an object with these members"
        )
    labels: list[str] = []
    if LABELS in spec.inputs:
        named = options.pop(LABELS, None)
        if isinstance(named, str):
            named = [each.strip() for each in named.split(",") if each.strip()]
        labels = _strings(_list({LABELS: named}, LABELS), LABELS)
        tensors[LABELS] = [labels] * len(items)
    here = {name: options.pop(name) for name in PIPELINE.get(LABELS if labels else output, ()) if name in options}
    found = _run(front_end, environ, model, tensors, (output,), options)[output]
    if output == EMBEDDING:
        return _as_asked(found, here | _given(options, {"normalize"})).tolist()
    if output == ANSWER:
        answers = [orjson.loads(each) for each in found.ravel()]
        if len(items) == 1 and not is_one:
            # As in transformers, where these two answer a list of one text as the text.
            config = front_end.bridge.run(front_end.engine.model_config(spec.name).parse)
            is_one = config.parameters["task"].string_value in ("fill-mask", "question-answering")
    elif labels:
        answers = [
            {"sequence": text, "labels": [labels[at] for at in order], "scores": row[order].tolist()}
            for text, row in zip(tensors[TEXT], found, strict=True)
            for order in [np.argsort(row, kind="stable")[::-1].tolist()]  # of equal ones the last first, as there
        ]
    else:
        return _classified(spec, found, here, inputs)
    return answers[0] if is_one else answers


def _classified(spec: ModelSpec, scores: Array, options: Mapping[str, Any], inputs: Any) -> Any:
    """The labels in the form that transformers' pipeline gives them, which follows from `top_k` and the inputs."""
    rows = [_labelled(spec, row, _best_first) for row in scores]
    if flag(options, "return_all_scores", False) and "top_k" not in options:
        order = {label: at for at, label in enumerate(spec.outputs[SCORES].labels or ())}
        return [sorted(row, key=lambda each: order.get(each["label"], 0)) for row in rows]
    if "top_k" in options:
        cut = [row[: _count(options, "top_k", len(row))] for row in rows]
        return cut if isinstance(inputs, list) else cut[0]
    best = [row[0] for row in rows]
    return best[0] if isinstance(inputs, dict) else best


def _ranked(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Mapping[str, Any]) -> Any:
    _refuse_unknown(body, MEMBERS["/rerank"])
    texts = _strings(_list(body, "texts"), "texts")
    options = _given(body, _CUT | {"prompt_name"})
    queries = _strings([body.get(QUERY)], QUERY) * len(texts)
    scores = _unit_scores(front_end, environ, model, queries, texts, options, flag(body, "raw_scores", False))
    with_text = flag(body, "return_text", False)
    return [
        {"index": at, SCORE: float(scores[at])} | ({TEXT: texts[at]} if with_text else {})
        for at in _last_of_ties_first(scores)[: _count(body, "top_n", len(texts))]
    ]


def _labelled(spec: ModelSpec, row: Array, order: Callable[[Array], list[int]]) -> list[dict[str, Any]]:
    labels = spec.outputs[SCORES].labels or [str(at) for at in range(len(row))]
    return [{"label": labels[at], SCORE: float(row[at])} for at in order(row)]


# --- embeddings


def embeddings(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """OpenAI's `POST /v1/embeddings`."""
    body = read_object(front_end, environ)
    _refuse_unknown(body, MEMBERS["/v1/embeddings"])
    texts = _texts_or_ids(body, "input")
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise InvalidRequest(f"'encoding_format' is {form!r}, expected 'float' or 'base64'")
    if body.get("modality") not in (None, "text"):  # infinity's clients send it
        raise InvalidRequest(f"'modality' is {body['modality']!r}, expected 'text'")
    model, name, output = _embedding_model(front_end, _name(body), texts)
    wanted = (output, TOKENS) if TOKENS in model.spec.outputs else (output,)
    found = _run(front_end, environ, model, {name: texts}, wanted, {})
    vectors = _as_asked(found[output], {"dimensions": body.get("dimensions")})
    document = {
        "object": "list",
        "data": off_hub(front_end, vectors.nbytes, _data, vectors, form),
        "model": model.spec.name,
        "usage": _usage(found),
    }
    return off_hub(front_end, vectors.nbytes, json_reply, document)


def _texts_or_ids(body: Mapping[str, Any], member: str) -> list[str | bytes]:
    """The texts in `member`: one, or a list; token ids are bytes for the backend `text`, which knows its vocabulary."""
    given = body.get(member)
    listed = [given] if isinstance(given, str) else _list(body, member)
    # One list of numbers is one text.
    listed = [listed] if type(listed[0]) is int else listed
    texts: list[str | bytes] = []
    for at, each in enumerate(listed):
        if not isinstance(each, list):
            texts.append(each)
        elif each and all(type(token) is int and 0 <= token < 1 << 31 for token in each):
            texts.append(_IDS + np.array(each, "<i4").tobytes())
        else:
            raise InvalidRequest(f"item {at} of '{member}' must be a text, or a list with at least one token id")
    _strings([each for each in texts if not isinstance(each, bytes)], member)
    if "" in texts:
        where = "" if isinstance(given, str) else f"item {texts.index('')} of "
        raise InvalidRequest(f"{where}'{member}' cannot be an empty string")
    return texts


def _data(vectors: Array, form: str) -> list[dict[str, Any]]:
    values: Iterator[Any] = (
        (base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors)
        if form == "base64"
        else iter(vectors.tolist())
    )
    return [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]


def _as_asked(vectors: Array, options: Mapping[str, Any]) -> Array:
    """The vectors with `dimensions` elements, of length 1 if `normalize` is true. Raises InvalidRequest.

    Shortened ones have length 1 unless it is false, as models of the Matryoshka kind are meant to be used.
    """
    most = vectors.shape[1]
    size = _count(options, "dimensions", most)
    if size > most:
        raise InvalidRequest(f"'dimensions' is {size}, the model's vectors have {most}")
    cut = vectors[:, :size]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    if options.get("normalize") is False and size == most and np.allclose(lengths, 1, atol=1e-3):
        raise InvalidRequest(
            "'normalize' is false, and the model gives vectors of length 1",
            hint='for others set its parameter: parameters { key: "normalize" value { string_value: "false" } }',
        )
    normalize = options.get("normalize", size < most)
    if not isinstance(normalize, bool):
        raise InvalidRequest("'normalize' must be true or false")
    return np.asarray(cut / np.maximum(lengths, 1e-12)) if normalize else cut


def _refuse_unknown(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name not in known and value not in (None, {}, []):
            raise InvalidRequest(f"'{name}' is not supported here", hint=f"known are: {', '.join(sorted(known))}")


def _given(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: body[name] for name in names if body.get(name) is not None}


def _embedding_model(front_end: HttpFrontEnd, name: str, texts: Sequence[str | bytes]) -> tuple[ServedModel, str, str]:
    """The model, its input and its output. Raises InvalidRequest if it does not take `texts`, or has no vectors."""
    model = front_end.engine.model(name) if name else _model_with(front_end, name, EMBEDDING)
    spec = model.spec
    inputs = [each.name for each in spec.inputs.values() if not each.optional]
    vectors = [each.name for each in spec.outputs.values() if each.datatype.name in ("FP32", "FP16", "FP64")]
    # Those of a text model with another task are scores.
    is_sure = len(vectors) == 1 and spec.backend != TEXT_BACKEND
    output = EMBEDDING if EMBEDDING in vectors else vectors[0] if is_sure else ""
    if len(inputs) != 1 or spec.inputs[inputs[0]].datatype is not BYTES or not output:
        raise InvalidRequest(
            f"model '{spec.name}' gives no embeddings of texts",
            hint=f"it needs one BYTES input, and an output called {EMBEDDING} or only one of floating-point numbers",
        )
    if spec.backend != TEXT_BACKEND and any(isinstance(each, bytes) for each in texts):
        raise InvalidRequest(f"model '{spec.name}' takes texts, not token ids")
    return one_response(model), inputs[0], output


# --- scores


def _scores(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    queries: Sequence[str],
    texts: Sequence[str],
    options: Mapping[str, Any],
) -> tuple[Array, dict[str, int]]:
    """How well each of `texts` answers its query, and the tokens used."""
    wanted = (SCORE, TOKENS) if TOKENS in model.spec.outputs else (SCORE,)
    found = _run(front_end, environ, model, {QUERY: queries, TEXT: texts}, wanted, options)
    return found[SCORE].reshape(-1), _usage(found)


def _unit_scores(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    queries: Sequence[str],
    texts: Sequence[str],
    options: Mapping[str, Any],
    is_raw: bool,
) -> Array:
    """The scores between 0 and 1, whatever the activation of a text model is, or `is_raw` those of the graph."""
    own = _OPTIONS in model.spec.inputs
    scores, _ = _scores(front_end, environ, model, queries, texts, {**options, "raw_scores": True} if own else options)
    return 1 / (1 + np.exp(-np.clip(scores, -80, 80))) if own and not is_raw else scores


def _best_first(scores: Array) -> list[int]:
    """The indices in the order of the scores; of equal ones the first first, as in transformers and vLLM."""
    return np.argsort(-scores, kind="stable").tolist()  # type: ignore[no-any-return]


def _last_of_ties_first(scores: Array) -> list[int]:
    """The same as in text-embeddings-inference, which reverses an ascending order."""
    return np.argsort(scores, kind="stable")[::-1].tolist()  # type: ignore[no-any-return]


def _usage(found: Mapping[str, Array]) -> dict[str, int]:
    tokens = int(found[TOKENS].sum()) if TOKENS in found else 0
    return {"prompt_tokens": tokens, "total_tokens": tokens}


# --- models and requests


def ready_models(front_end: HttpFrontEnd) -> list[str]:
    """The names of the models that are ready, in their order."""
    index = front_end.bridge.run(front_end.engine.repository_index, True)
    return sorted({entry.name for entry in index})


def served_models(front_end: HttpFrontEnd) -> list[ServedModel]:
    """The models that are ready, in the order of their names; one that is unloaded meanwhile is left out."""
    found: list[ServedModel] = []
    for name in ready_models(front_end):
        with suppress(ServerError):
            found.append(front_end.engine.model(name))
    return found


def _model_object(name: str, *, is_ready: bool) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "trident", "name": name, "ready": is_ready}


def _model_with(front_end: HttpFrontEnd, name: str, output: str) -> ServedModel:
    """The model `name`, or the only one with the output. Raises InvalidRequest if it lacks it or several have it."""
    if name:
        model = one_response(front_end.engine.model(name))
        if output not in model.spec.outputs:
            raise InvalidRequest(f"model '{name}' has no output '{output}', which this route needs")
        return model
    found: list[ServedModel] = []
    for model in served_models(front_end):
        takes_texts = TEXT in model.spec.inputs or model.spec.backend == TEXT_BACKEND
        if takes_texts and (output in model.spec.outputs or not output):
            found.append(model)
    if len(found) != 1:
        names = ", ".join(model.spec.name for model in found[:10])
        raise InvalidRequest(
            f"several models fit: {names}" if found else f"no model with the output '{output or TEXT}' is ready",
            hint="name one in the member 'model'" if found else "load one of the backend text",
        )
    return one_response(found[0])


def _run(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    inputs: Mapping[str, Texts],
    outputs: tuple[str, ...],
    options: Mapping[str, Any],
) -> dict[str, Array]:
    """The outputs for texts, with a row for each. More texts than a batch may have are several requests.

    `options` go to the model. Raises InvalidRequest if it reads none.
    """
    spec = model.spec
    count = len(next(iter(inputs.values())))
    if options:
        if _OPTIONS not in spec.inputs:
            raise InvalidRequest(
                f"'{next(iter(options))}' is not supported by model '{spec.name}', which has no input '{_OPTIONS}'"
            )
        inputs = {**inputs, _OPTIONS: [orjson.dumps(options)] * count}
    most = max(1, spec.max_batch_size)
    requests = [
        _request(spec, {name: texts[at : at + most] for name, texts in inputs.items()}, outputs)
        for at in range(0, count, most)
    ]
    for request in requests:
        address(environ, request)
    if len(requests) == 1:
        responses = [run(front_end, environ, model, requests[0])]
    else:
        responses = front_end.bridge.run_long(run_many, front_end, environ, requests)
    return {name: np.concatenate([_rows(response, name, spec) for response in responses]) for name in outputs}


def _request(spec: ModelSpec, inputs: Mapping[str, Texts], outputs: tuple[str, ...]) -> InferenceRequest:
    tensors = []
    for name, texts in inputs.items():
        rows = [text if isinstance(text, list) else [text] for text in texts]
        dims = (*[1 for _ in spec.inputs[name].dims[1:]], len(rows[0]))
        shape = (len(rows), *dims) if spec.max_batch_size > 0 else dims
        elements = bytes_array(
            [text.encode() if isinstance(text, str) else text for row in rows for text in row], shape
        )
        tensors.append(InputTensor(name, "BYTES", shape, elements))
    return InferenceRequest(spec.name, tensors, outputs=outputs)


def address(environ: Environ, request: InferenceRequest) -> None:
    """Give `request` the version and the id that the platform's request asks for."""
    request.model_version = environ.get(VERSION_KEY, LATEST)
    request.id = environ.get(REQUEST_ID_KEY, "")


def _rows(response: InferenceResponse, name: str, spec: ModelSpec) -> Array:
    array = next(output.array for output in response.outputs if output.name == name)
    return array if spec.max_batch_size > 0 else array.reshape(1, -1)


# --- bodies and errors


def read_object(front_end: HttpFrontEnd, environ: Environ) -> dict[str, Any]:
    """The JSON object in the body. Raises InvalidRequest."""
    body = read_body(front_end, environ)
    limit = front_end.options.max_input_size
    if len(body) > limit:
        raise too_large(str(len(body)), limit)
    try:
        document = off_hub(front_end, len(body), orjson.loads, body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body is not a JSON object")
    return document


def _name(body: Mapping[str, Any]) -> str:
    name = body.get("model", "")
    if not isinstance(name, str):
        raise InvalidRequest("'model' is not a string")
    return name


def flag(body: Mapping[str, Any], member: str, default: bool) -> bool:
    """A member that is true or false; `default` where there is none, or null. Raises InvalidRequest."""
    value = body.get(member)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"'{member}' must be true or false")
    return default if value is None else value


def _list(body: Mapping[str, Any], member: str) -> list[Any]:
    values = body.get(member)
    if not isinstance(values, list) or not values:
        raise InvalidRequest(f"'{member}' must be a list with at least one text")
    if len(values) > _MOST_TEXTS and type(values[0]) is not int:
        raise InvalidRequest(f"'{member}' has {len(values)} texts, at most {_MOST_TEXTS} are allowed in a request")
    return values


def _strings(values: Sequence[Any], member: str) -> list[str]:
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise InvalidRequest(f"item {at} of '{member}' is not a string")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"item {at} of '{member}' has half of a surrogate pair") from None
    return [*values]


def _count(body: Mapping[str, Any], member: str, default: int) -> int:
    value = body.get(member)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise InvalidRequest(f"'{member}' must be a whole number of at least 1")
    return value


def openai_error(front_end: HttpFrontEnd, environ: Environ, error: ServerError) -> Reply:
    """The reply with the error in OpenAI's form, which its clients show."""
    reply = json_reply(openai_error_object(front_end, environ, error), _status(front_end, error))
    reply.headers += extra_headers(error, environ, front_end.options.error_hints)
    return reply


def openai_error_object(front_end: HttpFrontEnd, environ: Environ, error: ServerError) -> dict[str, Any]:
    """The error in OpenAI's form; it is logged as well."""
    status = _status(front_end, error)
    log_error(error, status, environ)
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    told = error_document(error, front_end.options.error_hints)
    hint = {"hint": told["hint"]} if "hint" in told else {}
    return {"error": {"message": told["error"], "type": kind, "param": None, "code": None, **hint}}


def _status(front_end: HttpFrontEnd, error: ServerError) -> int:
    return error.status if isinstance(error, HttpError) else front_end.status_of(error)
