"""A Ray Serve application whose replicas each have a server in their process.

    RAY_USAGE_STATS_ENABLED=0 TRIDENT_MODELS=$PWD/deploy/models serve run deploy.ray.application:application

Source: deploy/ray/README.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ray import serve
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse
from werkzeug.test import EnvironBuilder, run_wsgi_app

import trident


class Replica:
    """The v2 and OpenAI routes of the models in `repository`, with options of `trident.Server`."""

    def __init__(self, repository: str, **options: Any) -> None:
        self._server = trident.Server(repository, **options)
        self._application = self._server.wsgi()

    async def __call__(self, request: Request) -> StreamingResponse:
        body = await request.body()
        return await run_in_threadpool(self._answer, request, body)

    def _answer(self, request: Request, body: bytes) -> StreamingResponse:
        builder = EnvironBuilder(
            method=request.method,
            path=request.url.path,
            query_string=request.url.query,
            headers=request.headers.items(),
            data=body,
        )
        parts, status, headers = run_wsgi_app(self._application, builder.get_environ())
        # The parts are taken on a thread, as they are made: a stream of events is one here, too.
        answer = StreamingResponse(_parts(parts), int(status.partition(" ")[0]))
        answer.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return answer

    def check_health(self) -> None:
        """Called by Ray; it replaces a replica that raises."""
        if not self._server.is_ready():
            raise RuntimeError("a model does not serve")

    def __del__(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            server.close()


class MultiplexedReplica(Replica):
    """A replica that loads a model when a request names it in the header `serve_multiplexed_model_id`.

    Ray sends such requests to a replica that has the model, and unloads the one that was used longest ago for a fourth.
    """

    def __init__(self, repository: str, **options: Any) -> None:
        super().__init__(repository, model_control_mode="explicit", **options)

    async def __call__(self, request: Request) -> StreamingResponse:
        name = serve.get_multiplexed_model_id()
        if name:
            with suppress(trident.ServerError):  # the answer says what is wrong with the model
                await self._loaded(name)
        return await super().__call__(request)

    @serve.multiplexed(max_num_models_per_replica=3)  # type: ignore[untyped-decorator]
    async def _loaded(self, name: str) -> _LoadedModel:
        await run_in_threadpool(self._server.load, name)
        return _LoadedModel(self._server, name)


class _LoadedModel:
    """Ray ends it when others take its place."""

    def __init__(self, server: trident.Server, name: str) -> None:
        self._server = server
        self._name = name

    def __del__(self) -> None:
        name, self._name = self._name, ""
        if name:
            with suppress(trident.ServerError):  # the server was closed
                self._server.unload(name)


def _parts(parts: Any) -> Iterator[bytes]:
    for part in parts:
        yield bytes(part)


deployment = serve.deployment(
    max_ongoing_requests=64,
    autoscaling_config={
        "min_replicas": 1,
        "max_replicas": 4,
        # Requests that a replica has, queued and running: more are a reason for another replica.
        "target_ongoing_requests": 16,
        "upscale_delay_s": 5,
        "downscale_delay_s": 60,
    },
    health_check_period_s=5,
)(Replica)
multiplexed = deployment.options(func_or_class=MultiplexedReplica, name="MultiplexedReplica")
application = deployment.bind(os.environ.get("TRIDENT_MODELS", "models"))
