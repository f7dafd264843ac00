"""The options of the engine, which the application makes from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from trident.core.observability.tracing.trace import TraceOptions
from trident.core.options import (
    DEFAULT_WINDOW,
    LatencyOptions,
    PayloadLogOptions,
    RedisOptions,
    ResourceLimit,
    WindowLimits,
)


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """The engine `index` of `count`.

    The numbers that engines give out, of holds and of traces, tell a front end whom they concern: engine `index` counts
    from `index` in steps of `count`.
    """

    index: int = 0
    count: int = 1


# Values of `gpu_memory_per_model`.
AUTO: Final = -1
"""A model may take the memory that is free at its load and not reserved for others."""
UNLIMITED: Final = 0
"""No memory is reserved for models, and no load is refused."""


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The limit of the models of a server: `bytes` of the container, or this `part` of it and of each GPU; without
    both what is left of the container when the server runs."""

    bytes: int = 0
    part: float = 0.0


class Readiness(Enum):
    """The value is that of --strict-readiness.

    SERVING: each model that the start had to load serves. A later load that fails takes nothing away from the versions
    that serve, and so must not take all replicas of a server out of their service at the same moment.
    STRICT: each version of each known model is ready, as in Triton.
    STARTED: the models do not matter.
    """

    SERVING = "auto"
    STRICT = "true"
    STARTED = "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`backend_settings` maps a backend's name to its --backend-config values; "" holds those for all backends.

    With `any_layout` a repository may also be a single model, named `single_model` if that is not empty.
    `control_mode` is none, poll, explicit or demand; the last two load `load_models` at start. In demand mode models
    may take `model_memory` of the container, and one that was asked nothing for `model_idle_s` seconds is let go, 0:
    never. Files from cloud storage are kept in `cache_directory`, at most `cache_bytes` of them (0: no limit);
    `credential_path` is a file with the credentials. `signature_key` is the file of the key that must have signed every
    model, empty without one. `min_compute_capability` and `visible_gpus` (the value of CUDA_VISIBLE_DEVICES, None if it
    is not set)
    select the GPUs; with `cpu_instead_of_gpu` models that ask for one where there is none run on the CPU. A batcher
    runs nothing until it has queued `delay_scheduler` requests for the first time, and `backlog_delay_scheduler` in the
    backlog of sequences; this is for tests. `response_cache_bytes` is the size of the response cache in memory, 0 for
    none; `redis_cache` is the one in Redis, which takes its place. `latencies` are the distributions of durations that
    every version keeps. `custom_metrics`: models may make metrics of their own. `response_window` is how much a model
    may send to a request before the client has taken it. `resource_limits` are the explicit ones of the rate limiter,
    None without it. Tensors of at least `shm_map_from` bytes in the shared memory of clients are mapped, 0 for none.
    `gpu_memory_per_model` is what a model may take on a GPU (`MemoryLedger`), and after `gpu_memory_idle_s` seconds
    without requests, unless that is 0, it gives back what only its executions needed.
    `load_timeout_s` is how long a step of a load may take, 0 for ever. `unload_timeout_s` is how long a version that
    leaves waits for its requests before it ends its processes, 0 for ever. `console`: a history is kept for it.
    `place` is that of the engine among those of the server.
    """

    repositories: tuple[str, ...]
    server_id: str = "triton"
    server_version: str = ""
    readiness: Readiness = Readiness.SERVING
    auto_complete: bool = True
    config_name: str = ""
    control_mode: str = "none"
    model_memory: MemoryShare = MemoryShare()
    model_idle_s: float = 0.0
    load_models: tuple[str, ...] = ()
    poll_secs: float = 0.0
    namespacing: bool = False
    any_layout: bool = False
    single_model: str = ""
    cache_directory: str = ""
    cache_bytes: int = 0
    credential_path: str = ""
    signature_key: str = ""
    load_threads: int = 4
    load_retries: int = 0
    load_timeout_s: float = 0.0
    unload_timeout_s: float = 300.0
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    min_compute_capability: float = 6.0
    cpu_instead_of_gpu: bool = False
    visible_gpus: str | None = None
    delay_scheduler: int = 0
    backlog_delay_scheduler: int = 0
    metrics_interval_ms: float = 2000.0
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    custom_metrics: bool = True
    response_cache_bytes: int = 0
    redis_cache: RedisOptions | None = None
    response_window: WindowLimits = DEFAULT_WINDOW
    shm_map_from: int = 0
    latencies: LatencyOptions = field(default_factory=LatencyOptions)
    resource_limits: tuple[ResourceLimit, ...] | None = None
    tracing: TraceOptions = field(default_factory=TraceOptions)
    payload_log: PayloadLogOptions | None = None
    console: bool = False
    gpu_memory_per_model: int = AUTO
    gpu_memory_idle_s: float = 300.0
    place: EnginePlace = field(default_factory=EnginePlace)
