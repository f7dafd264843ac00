"""The options of a model's sessions, from its configuration, the backend's settings and the thread plan.

Source: docs/spec/onnxruntime-backend.md section 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.backends.devices.cpu_budget import Spinning
from core.backends.parameter_values import boolean, field_of, integer, parameters_of
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid

_GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_EXECUTION_MODES = {0: "ORT_SEQUENTIAL", 1: "ORT_PARALLEL"}
# Model parameters that are entries of ONNX Runtime's session or run options under the same name.
_SESSION_ENTRIES = (
    "session.use_device_allocator_for_initializers",
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_duration_us",
)
_RUN_ENTRIES = ("memory.enable_memory_arena_shrinkage",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """`graph_level` and `execution_mode` are names in ONNX Runtime's enums. 0 threads and None mean its defaults."""

    graph_level: str = "ORT_ENABLE_ALL"
    execution_mode: str = "ORT_SEQUENTIAL"
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    enable_mem_arena: bool | None = None
    enable_mem_pattern: bool | None = None
    global_thread_pool: bool = False
    session_entries: dict[str, str] = field(default_factory=dict)
    run_entries: dict[str, str] = field(default_factory=dict)

    @property
    def thread_plan(self) -> str:
        """The session's threads, as the start table shows them."""
        if self.global_thread_pool:
            return "the global pool"
        return f"{self.intra_op_threads or 'default'} intra-op, {self.inter_op_threads or 'default'} inter-op"


_SPIN_ENTRIES = {
    Spinning.FREELY: {"session.intra_op.allow_spinning": "1", "session.inter_op.allow_spinning": "1"},
    # With a version of ONNX Runtime that does not know the duration, the threads stop spinning at the end of a run.
    Spinning.BRIEFLY: {
        "session.intra_op.allow_spinning": "1",
        "session.intra_op.spin_duration_us": "1000",
        "session.inter_op.allow_spinning": "0",
        "session.force_spinning_stop": "1",
    },
    Spinning.NEVER: {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"},
}


def session_settings(
    config: ModelConfig, settings: Mapping[str, str], *, threads: int = 0, spinning: Spinning = Spinning.NEVER
) -> SessionSettings:
    """The settings for the sessions of one model.

    `threads` is the number that the thread plan grants to a model that does not set one. `spinning` is what threads do
    while they wait. `settings` are the backend's, from --backend-config. Raises ConfigInvalid.
    """
    parameters = parameters_of(config)
    global_pool = boolean(settings.get("enable-global-threadpool", "0"))
    # Sessions on the global pool have no threads of their own, but a bad value is refused all the same.
    intra_op = _thread_count(parameters, "intra_op_thread_count")
    inter_op = _thread_count(parameters, "inter_op_thread_count")
    return SessionSettings(
        graph_level=_GRAPH_LEVELS.get(config.optimization.graph.level, "ORT_ENABLE_ALL"),
        execution_mode=_execution_mode(parameters),
        intra_op_threads=0 if global_pool else intra_op or threads,
        inter_op_threads=0 if global_pool else inter_op,
        enable_mem_arena=_optional_boolean(parameters, "enable_mem_arena"),
        enable_mem_pattern=_optional_boolean(parameters, "enable_mem_pattern"),
        global_thread_pool=global_pool,
        session_entries={**_SPIN_ENTRIES[spinning], **_entries(parameters, _SESSION_ENTRIES)},
        run_entries=_entries(parameters, _RUN_ENTRIES),
    )


def global_pool_sizes(settings: Mapping[str, str]) -> tuple[int, int]:
    """Intra-op and inter-op threads of the process-wide pool; 0 means ONNX Runtime's default. Raises ConfigInvalid."""
    return _thread_count(settings, "intra_op_thread_count"), _thread_count(settings, "inter_op_thread_count")


def _execution_mode(parameters: Mapping[str, str]) -> str:
    mode = integer(parameters.get("execution_mode", "0"), field_of("execution_mode"))
    if mode not in _EXECUTION_MODES:
        raise ConfigInvalid(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 "
            f"but got {mode} .",  # the two spaces and the one before the stop are Triton's
            field=field_of("execution_mode"),
        )
    return _EXECUTION_MODES[mode]


def _thread_count(values: Mapping[str, str], name: str) -> int:
    return max(0, integer(values.get(name, "0"), field_of(name)))


def _optional_boolean(parameters: Mapping[str, str], name: str) -> bool | None:
    return boolean(parameters[name], field_of(name)) if name in parameters else None


def _entries(parameters: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: parameters[name] for name in names if name in parameters}
