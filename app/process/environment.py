"""The environment of this process: the one module of app that reads or changes it."""

from __future__ import annotations

import os
from collections.abc import Mapping


def process_environment() -> dict[str, str]:
    """A copy of the variables of this process."""
    return dict(os.environ)


def replace_process_environment(variables: Mapping[str, str]) -> None:
    """Give this process other variables. What has been imported before may have read the old ones."""
    os.environ.clear()
    os.environ.update(variables)


def has_colours() -> bool:
    """Whether a terminal may be written to in colours: NO_COLOR, whatever its value, forbids it."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def announce_metrics_directory(path: str) -> None:
    """Name the directory in which the metrics library of this process and its children shares its counters."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = path


def show_gpus(visible: str) -> None:
    """Have CUDA show this process only the GPUs in `visible`. Call it before CUDA is loaded."""
    os.environ["CUDA_VISIBLE_DEVICES"] = visible


def disable_telemetry() -> None:
    """Keep ONNX Runtime from sending telemetry. Call it before its import: ONNX Runtime's own switch comes too late."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def let_openmp_sleep() -> None:
    """Have OpenMP's threads sleep while they wait for each other. Call it before a library that has OpenMP is loaded.

    By default they spin: a module of PyTorch with two threads then takes ten times the time beside busy processes.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
