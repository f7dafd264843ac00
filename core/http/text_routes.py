"""Text models over the routes of other servers, so that the clients of those work as they are.

    /v1/embeddings, /v1/models              OpenAI
    /v1/rerank                              Jina AI, Cohere and vLLM
    /embed, /rerank, /predict               text-embeddings-inference

Models of the backend `text` have the tensors that these routes need; so may any other. A request that names no model
is for the only one that has them.
Source: docs/text-models.md; the API references of OpenAI, Jina AI and text-embeddings-inference.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from trident.core.config.platforms import TEXT as TEXT_BACKEND
from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest, ServerError
from trident.core.http.body import too_large
from trident.core.http.dataplane import off_hub, one_response, read_body, run, run_many
from trident.core.http.errors import HttpError, extra_headers, log_error, message_of
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.reply import TEXT as TEXT_PLAIN
from trident.core.http.reply import Environ, Reply, json_reply, text_reply
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import BYTES, Array, Buffer, bytes_array

# The tensors, as the backend `text` calls them.
TEXT, QUERY, LABELS = "text", "query", "candidate_labels"
EMBEDDING, TOKENS, SCORE, SCORES, ANSWER = "embedding", "tokens", "score", "scores", "answer"

# Begins an element that is token ids for the backend `text`, INT32 in little-endian order. No UTF-8 text has its first
# byte.
_IDS = b"\xffids"
# A request with more would keep the model from others for minutes.
_MOST_TEXTS = 1 << 16
# What clients of other servers may send, and its value here unless the configuration says otherwise.
_USUAL = {"truncate": "true", "truncation_direction": "right", "prompt_name": "", "raw_scores": "false"}
# A text for each row, or several; bytes are token ids.
Texts = Sequence[str | bytes] | Sequence[list[str]]
# An error's `type` in OpenAI's form, by its status; all others are `server_error`.
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


# --- the routes


def models(front_end: HttpFrontEnd, environ: Environ, model: str = "") -> Reply:
    """The models that are ready, `GET /v1/models`, or one of them, `/v1/models/NAME`, as OpenAI and KServe have it."""
    if model:
        front_end.engine.model(model)
        return json_reply(_model_object(model))
    ready = ready_models(front_end)
    return json_reply({"object": "list", "data": [_model_object(name) for name in ready], "models": ready})


def rerank_documents(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /v1/rerank`: documents in the order of their relevance for a query."""
    body = read_object(front_end, environ)
    documents = [each.get(TEXT) if isinstance(each, dict) else each for each in _list(body, "documents")]
    texts = _strings(documents, "documents")
    model = _model_with(front_end, _name(body), SCORE)
    scores, tokens = _scores(front_end, environ, model, body, texts)
    order = _best_first(scores)[: _count(body, "top_n", len(texts))]
    results = [
        {"index": at, "relevance_score": float(scores[at])}
        | ({"document": {TEXT: texts[at]}} if body.get("return_documents", True) is True else {})
        for at in order
    ]
    return json_reply({"object": "list", "model": model.spec.name, "usage": tokens, "results": results})


def embed(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /embed`: a list of vectors."""
    body = read_object(front_end, environ)
    texts = _texts_or_ids(body, "inputs")
    model, name, output = _embedding_model(front_end, _name(body), texts)
    _refuse_options(front_end, model, body)
    vectors = _run(front_end, environ, model, {name: texts}, (output,))[output]
    return json_reply(_as_asked(vectors, body).tolist())


def rerank(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /rerank`: the indices of texts with their scores, the best first."""
    body = read_object(front_end, environ)
    model = _model_with(front_end, _name(body), SCORE)
    _refuse_options(front_end, model, body)
    return json_reply(_ranked(front_end, environ, model, body))


def predict(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /predict`: the labels of one text with their scores, the best first; or a list of that for each text."""
    body = read_object(front_end, environ)
    inputs = body.get("inputs")
    # A list may hold texts, or lists of one text. Pairs are for rerankers.
    listed = [inputs] if isinstance(inputs, str) else _list(body, "inputs")
    flat = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in listed]
    model = _model_with(front_end, _name(body), SCORES)
    _refuse_options(front_end, model, body)
    scores = _run(front_end, environ, model, {TEXT: _strings(flat, "inputs")}, (SCORES,))[SCORES]
    found = [_labelled(model.spec, row) for row in scores]
    return json_reply(found[0] if isinstance(inputs, str) else found)


# --- the form of Hugging Face's containers


def hugging_face(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer) -> Reply | None:
    """The answer to `{"inputs": …, "parameters": …}`, or to lines of that, in the form of transformers' pipelines.

    Plain text is a text in each line. None for a body of another form. Raises ServerError.
    """
    if str(environ.get("CONTENT_TYPE") or "").partition(";")[0].strip().lower() == TEXT_PLAIN:
        try:
            lines = bytes(body).decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
        return _line_replies(front_end, environ, model, [{"inputs": line.removesuffix("\r")} for line in lines])
    try:
        documents = [orjson.loads(line) for line in bytes(body).splitlines() if line.strip()]
        is_lines = len(documents) > 1
    except ValueError:
        try:
            documents, is_lines = [orjson.loads(body)], False
        except ValueError:
            return None
    if not documents or not all(_is_of_pipeline(document) for document in documents):
        return None
    if is_lines:
        return _line_replies(front_end, environ, model, documents)
    return json_reply(_pipeline_answer(front_end, environ, model, documents[0]))


def _line_replies(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, documents: list[dict[str, Any]]
) -> Reply:
    """A line of JSON for each of `documents`. Texts with the same parameters run together."""
    first = documents[0].get("parameters")
    if all(isinstance(each["inputs"], str) and each.get("parameters") == first for each in documents):
        texts = [each["inputs"] for each in documents]
        rows = _pipeline_answer(front_end, environ, model, {**documents[0], "inputs": texts})
        # One text alone is answered with a list of one vector or label.
        is_listed = LABELS not in model.spec.inputs and ANSWER not in model.spec.outputs
        answers = [[row] for row in rows] if is_listed else rows
    else:
        answers = [_pipeline_answer(front_end, environ, model, document) for document in documents]
    return text_reply(200, b"\n".join(map(orjson.dumps, answers)), "application/jsonlines")


def _is_of_pipeline(document: Any) -> bool:
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if isinstance(inputs, list):
        return bool(inputs) and all(isinstance(each, str) for each in inputs)
    return isinstance(inputs, str | dict)


def _pipeline_answer(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: dict[str, Any]) -> Any:
    spec, inputs = model.spec, body["inputs"]
    options = body.get("parameters")
    options = options if isinstance(options, dict) else {}
    _refuse_options(front_end, model, options)
    if isinstance(inputs, dict):
        return _pipeline_answer_of_object(front_end, environ, model, inputs)
    texts = _strings([inputs] if isinstance(inputs, str) else inputs, "inputs")
    tensors: dict[str, Texts] = {TEXT: texts}
    labels: list[str] = []
    if LABELS in spec.inputs:
        labels = _strings(_list(options, LABELS), LABELS)
        tensors[LABELS] = [labels] * len(texts)
    output = next((name for name in (EMBEDDING, SCORES, ANSWER) if name in spec.outputs), "")
    if tensors.keys() != spec.inputs.keys() or not output:
        raise InvalidRequest(
            f"model '{spec.name}' takes {', '.join(spec.inputs)}: send 'inputs' as an object with these members"
        )
    found = _run(front_end, environ, model, tensors, (output,))[output]
    if output == EMBEDDING:
        return _as_asked(found, options).tolist()
    if output == ANSWER:
        answers = [orjson.loads(each) for each in found.ravel()]
        return answers[0] if isinstance(inputs, str) else answers
    if labels:
        ranked = [
            {"sequence": text, "labels": [labels[at] for at in order], "scores": row[order].tolist()}
            for text, row in zip(texts, found, strict=True)
            for order in [_best_first(row)]
        ]
        return ranked[0] if isinstance(inputs, str) else ranked
    best = [_labelled(spec, row)[: _count(options, "top_k", 1)] for row in found]
    return best if "top_k" in options else [row[0] for row in best]


def _pipeline_answer_of_object(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, inputs: dict[str, Any]
) -> Any:
    spec = model.spec
    if SCORE in spec.outputs:
        return _ranked(front_end, environ, model, inputs)
    missing = [name for name in spec.inputs if name not in inputs]
    if missing or ANSWER not in spec.outputs:
        raise InvalidRequest(f"'inputs' has no member '{', '.join(missing) or TEXT}', which model '{spec.name}' takes")
    tensors = {name: _strings([inputs[name]], name) for name in spec.inputs}
    return orjson.loads(_run(front_end, environ, model, tensors, (ANSWER,))[ANSWER].ravel()[0])


def _ranked(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Mapping[str, Any]) -> Any:
    texts = _strings(_list(body, "texts"), "texts")
    scores, _ = _scores(front_end, environ, model, body, texts)
    with_text = body.get("return_text") is True
    return [
        {"index": at, SCORE: float(scores[at])} | ({TEXT: texts[at]} if with_text else {}) for at in _best_first(scores)
    ]


def _labelled(spec: ModelSpec, row: Array) -> list[dict[str, Any]]:
    labels = spec.outputs[SCORES].labels or [str(at) for at in range(len(row))]
    return [{"label": labels[at], SCORE: float(row[at])} for at in _best_first(row)]


# --- embeddings


def embeddings(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """OpenAI's `POST /v1/embeddings`."""
    body = read_object(front_end, environ)
    texts = _texts_or_ids(body, "input")
    form = body.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise InvalidRequest(f"'encoding_format' is {form!r}, expected 'float' or 'base64'")
    model, name, output = _embedding_model(front_end, _name(body), texts)
    wanted = (output, TOKENS) if TOKENS in model.spec.outputs else (output,)
    found = _run(front_end, environ, model, {name: texts}, wanted)
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

    Shortened ones have length 1 in any case, as models of the Matryoshka kind are meant to be used.
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
    return np.asarray(cut / np.maximum(lengths, 1e-12)) if size < most or options.get("normalize") is True else cut


def _refuse_options(front_end: HttpFrontEnd, model: ServedModel, options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an option that would change the answer, and that only the model's configuration has."""
    for option, usual in _USUAL.items():
        value = options.get(option)
        if value is None or str(value).lower() == usual:
            continue
        config = front_end.engine.model_config(model.spec.name, model.spec.version)
        parameters = front_end.bridge.run(config.parse).parameters
        if option not in parameters or parameters[option].string_value != str(value).lower():
            raise InvalidRequest(
                f"'{option}' is {value!r} in the request, which model '{model.spec.name}' does not do",
                hint="leave it out; the parameters in config.pbtxt say how a model treats texts",
            )


def _embedding_model(front_end: HttpFrontEnd, name: str, texts: Sequence[str | bytes]) -> tuple[ServedModel, str, str]:
    """The model, its input and its output. Raises InvalidRequest if it does not take `texts`, or has no vectors."""
    model = front_end.engine.model(name) if name else _model_with(front_end, name, EMBEDDING)
    spec = model.spec
    inputs = [each.name for each in spec.inputs.values() if each.datatype is BYTES]
    vectors = [each.name for each in spec.outputs.values() if each.datatype.name in ("FP32", "FP16", "FP64")]
    output = EMBEDDING if EMBEDDING in vectors else vectors[0] if len(vectors) == 1 else ""
    if len(spec.inputs) != 1 or len(inputs) != 1 or not output:
        raise InvalidRequest(
            f"model '{spec.name}' gives no embeddings of texts",
            hint=f"it needs one BYTES input, and an output called {EMBEDDING} or only one of floating-point numbers",
        )
    if spec.backend != TEXT_BACKEND and any(isinstance(each, bytes) for each in texts):
        raise InvalidRequest(f"model '{spec.name}' takes texts, not token ids")
    return one_response(model), inputs[0], output


# --- scores


def _scores(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Mapping[str, Any], texts: Sequence[str]
) -> tuple[Array, dict[str, int]]:
    """How well each of `texts` answers the query in `body`, and the tokens used."""
    query = _strings([body.get(QUERY)], QUERY)
    wanted = (SCORE, TOKENS) if TOKENS in model.spec.outputs else (SCORE,)
    found = _run(front_end, environ, model, {QUERY: query * len(texts), TEXT: texts}, wanted)
    return found[SCORE].reshape(-1), _usage(found)


def _best_first(scores: Array) -> list[int]:
    return np.argsort(-scores, kind="stable").tolist()  # type: ignore[no-any-return]


def _usage(found: Mapping[str, Array]) -> dict[str, int]:
    tokens = int(found[TOKENS].sum()) if TOKENS in found else 0
    return {"prompt_tokens": tokens, "total_tokens": tokens}


# --- models and requests


def ready_models(front_end: HttpFrontEnd) -> list[str]:
    """The names of the models that are ready, in their order."""
    index = front_end.bridge.run(front_end.engine.repository_index, True)
    return sorted({entry.name for entry in index})


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "trident", "name": name, "ready": True}


def _model_with(front_end: HttpFrontEnd, name: str, output: str) -> ServedModel:
    """The model `name`, or the only one with the output. Raises InvalidRequest if it lacks it or several have it."""
    if name:
        model = one_response(front_end.engine.model(name))
        if output not in model.spec.outputs:
            raise InvalidRequest(f"model '{name}' has no output '{output}', which this route needs")
        return model
    found: list[ServedModel] = []
    for ready in ready_models(front_end):
        try:
            model = front_end.engine.model(ready)
        except ServerError:  # unloaded meanwhile
            continue
        if output in model.spec.outputs and TEXT in model.spec.inputs:
            found.append(model)
    if len(found) != 1:
        names = ", ".join(model.spec.name for model in found[:10])
        raise InvalidRequest(
            f"no model with the output '{output}' is ready" if not found else f"several models fit: {names}",
            hint="name one in the member 'model'" if found else "load one of the backend text",
        )
    return one_response(found[0])


def _run(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    inputs: Mapping[str, Texts],
    outputs: tuple[str, ...],
) -> dict[str, Array]:
    """The outputs for texts, with a row for each. More texts than a batch may have are several requests."""
    spec = model.spec
    count = len(next(iter(inputs.values())))
    most = max(1, spec.max_batch_size)
    requests = [
        _request(spec, {name: texts[at : at + most] for name, texts in inputs.items()}, outputs)
        for at in range(0, count, most)
    ]
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
    message = message_of(error, front_end.options.error_hints)
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _status(front_end: HttpFrontEnd, error: ServerError) -> int:
    return error.status if isinstance(error, HttpError) else front_end.status_of(error)
