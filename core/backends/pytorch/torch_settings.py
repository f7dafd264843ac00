"""The parameters of a TorchScript model.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from core.backends.parameter_values import boolean, field_of, integer, parameters_of
from core.config.schema import ModelConfig

_log = logging.getLogger("trident.backends")

_THREADS = "INTRA_OP_THREAD_COUNT"


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """`threads` is 0 where the thread plan decides. The last three are None where PyTorch's default stays."""

    optimizes: bool
    uses_inference_mode: bool
    uses_cudnn: bool
    empties_cache: bool
    shares_weights: bool
    threads: int
    executor: bool | None
    profiling: bool | None
    fuser: bool | None

    @classmethod
    def read(cls, config: ModelConfig) -> TorchSettings:
        """The settings of `config`. Raises ConfigInvalid, with Triton's text."""
        given = parameters_of(config)

        def switch(name: str, default: bool) -> bool:
            return boolean(given[name], field_of(name)) if name in given else default

        def choice(name: str) -> bool | None:
            return boolean(given[name], field_of(name)) if name in given else None

        return cls(
            optimizes=not switch("DISABLE_OPTIMIZED_EXECUTION", False),
            uses_inference_mode=switch("INFERENCE_MODE", True),
            uses_cudnn=not switch("DISABLE_CUDNN", False),
            empties_cache=switch("ENABLE_CACHE_CLEANING", False),
            shares_weights=switch("ENABLE_WEIGHT_SHARING", False),
            threads=max(0, integer(given.get(_THREADS, "0"), field_of(_THREADS))),
            executor=choice("ENABLE_JIT_EXECUTOR"),
            profiling=choice("ENABLE_JIT_PROFILING"),
            fuser=choice("ENABLE_TENSOR_FUSER"),
        )

    def log(self, config: ModelConfig) -> None:
        """Say how a model with parameters runs, in Triton's words."""
        if not config.parameters:
            return
        for name, is_on in (
            ("Optimized execution", self.optimizes),
            ("Cache Cleaning", self.empties_cache),
            ("Inference Mode", self.uses_inference_mode),
            ("cuDNN", self.uses_cudnn),
        ):
            _log.info("%s is %s for model instance '%s'", name, "enabled" if is_on else "disabled", config.name)
