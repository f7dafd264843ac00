"""The views of a multi-model endpoint's models: load, list, describe, unload.

A load or unload may take minutes, so it runs on its own thread and never blocks the hub.
Source: docs/spec/sagemaker.md sections A5 and B3.
"""

from __future__ import annotations

from urllib.parse import parse_qs, unquote

from trident.adapters.sagemaker.model_registry import PAGE, SageMakerEndpoint
from trident.adapters.sagemaker.model_states import LoadedModel
from trident.core.errors import InvalidRequest, ModelLoadFailed
from trident.core.http.application import V2Application
from trident.core.http.body import read_object
from trident.core.http.reply import TEXT, Environ, Reply, empty_reply, json_reply

# Bytes. The platform sends only a name and a path.
_LARGEST_BODY = 65536
_FIXED = "The limit of this route is fixed."
_LONGEST_NUMBER = 9


def collection(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ) -> Reply:
    """POST loads a model, GET lists the loaded models."""
    view = _load if environ["REQUEST_METHOD"] == "POST" else _page
    return view(endpoint, application, environ)


def member(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ, model: str) -> Reply:
    """GET gives the url that the model was loaded from; DELETE unloads it and answers when its memory is free."""
    loaded = endpoint.loaded_models()
    name = unquote(model)
    if environ["REQUEST_METHOD"] == "DELETE":
        application.bridge.run_long(loaded.unload, name)
        return empty_reply(TEXT)
    return json_reply(_described(application.bridge.run(loaded.get, name)))


def _load(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ) -> Reply:
    """Answer when the model serves. A failed load is the archive's fault, and so a 400, as in Triton."""
    loaded = endpoint.loaded_models()
    document = read_object(environ, _LARGEST_BODY, _FIXED)
    for key in ("model_name", "url"):
        if not isinstance(document.get(key), str):
            raise InvalidRequest(
                f"'{key}' must be a string", hint='send {"model_name": "...", "url": "/opt/ml/models/.../model"}'
            )
    try:
        application.bridge.run_long(loaded.load, document["model_name"], document["url"])
    except ModelLoadFailed as error:
        raise InvalidRequest(error.message, hint=error.hint, model=error.model) from error
    return empty_reply(TEXT)


def _page(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ) -> Reply:
    loaded = endpoint.loaded_models()
    query = parse_qs(environ.get("QUERY_STRING", ""))
    limit = query.get("limit", [str(PAGE)])[0]
    if not (limit.isascii() and limit.isdigit() and len(limit) <= _LONGEST_NUMBER):
        raise InvalidRequest("'limit' must be a whole number from 1")
    token = query.get("next_page_token", [None])[0]
    page, following = application.bridge.run(loaded.names_after, token, int(limit))
    body: dict[str, object] = {"models": [_described(one) for one in page]}
    if following is not None:
        body["nextPageToken"] = following
    return json_reply(body)


def _described(one: LoadedModel) -> dict[str, str]:
    return {"modelName": one.name, "modelUrl": one.url}
