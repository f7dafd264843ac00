"""The route table of the v2 protocol.

Source: docs/spec/http.md section 2; content types of errors: section 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from trident.core.http import admin, completions, text_generation, text_routes
from trident.core.http.dataplane import infer
from trident.core.http.generate import generate, generate_stream
from trident.core.http.openapi import model_openapi, openapi
from trident.core.http.payloads.inference import predict
from trident.core.http.reply import JSON, TEXT, Reply
from trident.core.http.sample_request import sample_request
from trident.core.http.stream import stream

View = Callable[..., Reply]

GET = frozenset({"GET"})
POST = frozenset({"POST"})
BOTH = GET | POST


@dataclass(frozen=True, slots=True)
class Route:
    """One row. `rules` are Werkzeug's, matched against the raw path; the view gets the captured values by name.

    `view(front_end, environ, **captured)` returns a Reply or raises. `group` is the group of restricted APIs.
    `error_mime` is the content type of an error, `refusal_mime` that of a refusal before the view is called. The view
    of a route that `passes_on` answers as another route, for which the answer is counted. With `openai_errors` an error
    has the form of OpenAI's. With `open_get` a GET is open to everyone.
    """

    name: str
    rules: tuple[str, ...]
    group: str
    methods: frozenset[str]
    view: View
    error_mime: str = JSON
    refusal_mime: str = JSON
    passes_on: bool = False
    openai_errors: bool = False
    open_get: bool = False
    label: str = field(init=False)
    """The name of the route in metrics: its first rule."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.rules[0] if self.rules else self.name)


def of_model(tail: str) -> tuple[str, ...]:
    """The rules for `/v2/models/M TAIL`, with and without a version."""
    return f"/v2/models/<model>{tail}", f"/v2/models/<model>/versions/<digits:version>{tail}"


def of_repository(tail: str) -> tuple[str, ...]:
    """The rules for `/v2/repository TAIL`, with and without the name of a repository."""
    return f"/v2/repository{tail}", f"/v2/repository/<repository>{tail}"


def of_memory(action: str) -> tuple[str, ...]:
    """The rules for an action on all shared memory regions of a kind, or on the one that is named."""
    kinds = "/v2/<any(system,cuda):kind>sharedmemory"
    return f"{kinds}/{action}", f"{kinds}/region/<region>/{action}"


INFER = Route("infer", of_model("/infer"), "inference", POST, infer, refusal_mime=TEXT)
GENERATE = Route("generate", of_model("/generate"), "inference", POST, generate)
GENERATE_STREAM = Route("generate_stream", of_model("/generate_stream"), "inference", POST, generate_stream)
# A request to one of these runs a model.
INFERENCE = (INFER, GENERATE, GENERATE_STREAM)

ROUTES: tuple[Route, ...] = (
    *INFERENCE,
    Route("stream", of_model("/stream"), "inference", GET, stream),
    Route("embeddings", ("/v1/embeddings",), "inference", POST, text_routes.embeddings, openai_errors=True),
    Route("embeddings_of_infinity", ("/embeddings",), "inference", POST, text_routes.embeddings, openai_errors=True),
    Route("v1_embed", ("/v1/embed",), "inference", POST, partial(text_routes.embed_of_cohere, version="1")),
    Route("v2_embed", ("/v2/embed",), "inference", POST, partial(text_routes.embed_of_cohere, version="2")),
    Route("completions", ("/v1/completions",), "inference", POST, completions.completions, openai_errors=True),
    Route(
        "chat_completions",
        ("/v1/chat/completions",),
        "inference",
        POST,
        completions.chat_completions,
        openai_errors=True,
    ),
    Route(
        "v1_models", ("/v1/models", "/v1/models/<plain:model>"), "metadata", GET, text_routes.models, openai_errors=True
    ),
    Route(
        "v1_predict",
        ("/v1/models/<plain:model>:predict", "/v1/models/<plain:model>/versions/<digits:version>:predict"),
        "inference",
        POST,
        predict,
    ),
    Route(
        "v1_rerank",
        ("/v1/rerank",),
        "inference",
        POST,
        partial(text_routes.rerank_documents, with_documents=True),
        openai_errors=True,
    ),
    Route("v2_rerank", ("/v2/rerank",), "inference", POST, partial(text_routes.rerank_documents, with_documents=False)),
    Route("text_root", ("/",), "inference", BOTH, text_generation.at_the_root, refusal_mime=TEXT, open_get=True),
    Route("text_generate", ("/generate",), "inference", POST, text_generation.generate),
    Route("text_generate_stream", ("/generate_stream",), "inference", POST, text_generation.generate_stream),
    Route("text_info", ("/info",), "metadata", GET, text_routes.info),
    Route("text_similarity", ("/similarity",), "inference", POST, text_routes.similarity),
    Route("responses", ("/v1/responses",), "inference", POST, text_routes.other_apis, openai_errors=True),
    Route("messages", ("/v1/messages",), "inference", POST, text_routes.other_apis, openai_errors=True),
    *(
        Route(f"{name}_without_v1", (path,), "inference", BOTH, text_routes.other_apis, openai_errors=True)
        for name, path in text_routes.WITHOUT_V1.items()
    ),
    Route("v1_chat", ("/v1/chat",), "inference", POST, text_routes.other_apis),
    Route("v2_chat", ("/v2/chat",), "inference", POST, text_routes.other_apis),
    *(
        Route(f"text_{name}", (f"/{name}",), "inference", POST, text_routes.not_here)
        for name in text_routes.NOT_SUPPORTED
    ),
    Route("text_embed", ("/embed",), "inference", POST, text_routes.embed),
    Route("text_rerank", ("/rerank",), "inference", POST, text_routes.rerank),
    Route("text_predict", ("/predict",), "inference", POST, text_routes.predict),
    Route("live", ("/v2/health/live",), "health", GET, admin.live, TEXT, TEXT),
    Route("ready", ("/v2/health/ready",), "health", GET, admin.ready, TEXT, TEXT),
    Route("model_ready", of_model("/ready"), "health", GET, admin.model_ready, TEXT, TEXT),
    Route("server_metadata", ("/v2",), "metadata", GET, admin.server_metadata),
    Route("model_metadata", of_model(""), "metadata", GET, admin.model_metadata),
    Route("openapi", ("/v2/docs/openapi.json",), "metadata", GET, openapi),
    Route("model_openapi", of_model("/openapi.json"), "metadata", GET, model_openapi),
    Route("sample_request", of_model("/request"), "metadata", GET, sample_request),
    Route("model_config", of_model("/config"), "model-config", GET, admin.model_config),
    Route("statistics", ("/v2/models/stats", *of_model("/stats")), "statistics", GET, admin.model_statistics),
    Route("slowest", of_model("/slowest"), "statistics", GET, admin.slowest_requests),
    Route("repository_index", of_repository("/index"), "model-repository", POST, admin.repository_index),
    Route("load", of_repository("/models/<model>/load"), "model-repository", POST, admin.load_model),
    Route("unload", of_repository("/models/<model>/unload"), "model-repository", POST, admin.unload_model),
    Route("memory_status", of_memory("status"), "shared-memory", GET, admin.memory_status),
    Route("memory_register", of_memory("register"), "shared-memory", POST, admin.register_memory),
    Route("memory_unregister", of_memory("unregister"), "shared-memory", POST, admin.unregister_memory),
    Route("trace", ("/v2/trace/setting",), "trace", BOTH, admin.trace_settings),
    Route("model_trace", ("/v2/models/<model>/trace/setting",), "trace", BOTH, admin.trace_settings),
    Route("logging", ("/v2/logging",), "logging", BOTH, admin.log_settings),
)
