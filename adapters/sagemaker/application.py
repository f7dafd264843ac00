"""SageMaker's container contract as a WSGI application: the v2 core behind the platform's routes.

Source: docs/spec/sagemaker.md, all sections; docs/architecture.md section 3 point 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from adapters.sagemaker import invocations, request_headers
from adapters.sagemaker.errors import RouteAbsent
from adapters.sagemaker.memory import MemoryBudget
from adapters.sagemaker.model_registry import LoadedModels
from adapters.sagemaker.response_type import BINARY, ResponseTypes
from adapters.sagemaker.routes import ROUTES
from adapters.sagemaker.settings import DEFAULT_MODEL, MULTI_MODEL, SageMakerSettings
from core.engine.protocol import Engine
from core.errors import AlreadyLoaded, OutOfMemory
from core.frontend.bridge import Bridge
from core.http.application import V2Application
from core.http.default_model import DefaultModel
from core.http.errors import UnsupportedEncoding
from core.http.options import HttpOptions
from core.http.payloads.formats import NotAcceptable, UnsupportedMediaType
from core.http.reply import JSON, Environ, Headers, Reply
from core.http.v2.binary_type import SIZE
from core.inference.request import InferenceRequest, Parameter

_INVOKE_PATH = re.compile(r"/models/([^/]+)/invoke")
# For the platform 507 means: unload another model and try again.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (OutOfMemory, 507),
    (AlreadyLoaded, 409),
    (UnsupportedMediaType, 415),
    (UnsupportedEncoding, 415),
    (NotAcceptable, 406),
)


class SageMakerApplication(V2Application):
    """Serves one model of `engine`, or with `settings.multi_model` those that the platform loads.

    Raises ConfigInvalid for settings that cannot be right.
    """

    routes = ROUTES
    binary_mime = BINARY.essence
    inference_header = SIZE
    early_error_mime = JSON

    def __init__(
        self,
        engine: Engine,
        options: HttpOptions,
        bridge: Bridge,
        settings: SageMakerSettings,
        metrics_page: Callable[[], bytes],
        *,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`metrics_page` makes the page of /metrics anew. `memory` is what loaded models may take; without it, the
        memory of the container, and no GPU's."""
        super().__init__(engine, options, bridge)
        self.settings = settings
        self.metrics_page = metrics_page
        self.response_types = ResponseTypes(settings)
        self._default_model = DefaultModel(
            engine, bridge, settings.default_model, f"name the one that /invocations runs in {DEFAULT_MODEL}"
        )
        self._loaded: LoadedModels | None = None
        if settings.multi_model:
            self._loaded = LoadedModels(engine, settings.models_root, memory or MemoryBudget.of_machine())

    def loaded_models(self) -> LoadedModels:
        """Raises RouteAbsent where the endpoint has one model."""
        if self._loaded is None:
            raise RouteAbsent(
                f"this endpoint serves one model, by POST /invocations: {MULTI_MODEL} is not 'true'",
                hint=f"set {MULTI_MODEL}=true for an endpoint that loads models by POST /models",
            )
        return self._loaded

    # --- the hooks of V2Application

    def binary_header(self, environ: Environ) -> str | None:
        content_type = environ.get("CONTENT_TYPE")
        return BINARY.size_text(content_type) if content_type else None

    def body_headers(self, json_length: int | None) -> Headers:
        return [("Content-Type", JSON if json_length is None else BINARY.of(json_length))]

    def adopt_headers(self, environ: Environ, request: InferenceRequest) -> None:
        request_headers.adopt_headers(environ, request)

    def parameter_headers(self, parameters: Mapping[str, Parameter]) -> Headers:
        return request_headers.parameter_headers(parameters)

    def infer_path(self, path: str) -> dict[str, str] | None:
        """The model is "" for the default one."""
        if path == "/invocations":
            return {"model": "", "version": ""}
        found = _INVOKE_PATH.fullmatch(path)
        return {"model": unquote(found[1]), "version": ""} if found else None

    def infer_view(self, environ: Environ, model: str, version: str) -> Reply:
        if model:
            with self.loaded_models().invocation(model) as engine_name:
                return invocations.invoke(self, environ, self.engine.model_spec(engine_name))
        if self._loaded is not None:
            raise RouteAbsent(
                "this endpoint serves many models: POST /models/{name}/invoke names the one that is meant"
            )
        return invocations.invoke(self, environ, self._default_model.spec())

    def status_of(self, error: Exception) -> int:
        for kind, status in _STATUSES:
            if isinstance(error, kind):
                return status
        return super().status_of(error)
