"""What the engine is told at its start: plain data, made by the application from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`backend_settings` maps a backend's name to its --backend-config values; "" holds those for all backends.

    With `any_layout` a repository may also be a single model, called `single_model` if that is not empty.
    `control_mode` is none, poll or explicit; `load_models` are those of the start in explicit mode. What comes from
    cloud storage is kept in `cache_directory`, up to `cache_bytes` (0: without limit); `credential_path` names a
    file with its credentials. `min_compute_capability` and `visible_gpus` (the value of CUDA_VISIBLE_DEVICES, None
    where it is not set) say which GPUs count. `delay_scheduler` holds what dynamic batchers queue until that many are
    there, once (a hook of test suites).
    """

    repositories: tuple[str, ...]
    server_id: str = "triton"
    server_version: str = ""
    strict_readiness: bool = True
    auto_complete: bool = True
    config_name: str = ""
    control_mode: str = "none"
    load_models: tuple[str, ...] = ()
    poll_secs: float = 0.0
    namespacing: bool = False
    any_layout: bool = False
    single_model: str = ""
    cache_directory: str = ""
    cache_bytes: int = 0
    credential_path: str = ""
    load_threads: int = 4
    load_retries: int = 0
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    min_compute_capability: float = 6.0
    visible_gpus: str | None = None
    delay_scheduler: int = 0
    metrics_interval_ms: float = 2000.0
    gpu_metrics: bool = True
    cpu_metrics: bool = True
