"""The machine and the software that the figures were measured with."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path

PACKAGES = ("trident-inference", "onnxruntime", "numpy", "gevent", "gunicorn", "flask", "orjson", "pysimdjson")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()


def today() -> str:
    return datetime.date.today().isoformat()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def core_seconds() -> tuple[float, float]:
    """CPU seconds of the cores that this process may use, since the start of the machine: worked, and stolen.

    Stolen time is what a hypervisor gave to other machines while a core had work to do.
    """
    worked = stolen = 0
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name in usable:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, columns[:8])
            worked += user + nice + system + irq + softirq
            stolen += steal
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    return worked / ticks_per_second, stolen / ticks_per_second


def memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def describe() -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gb": round(memory_gb(), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": package_versions(),
    }


def slug() -> str:
    """The CPU as part of a file name: `intel-r-xeon-r-processor-2-50ghz-2-cores`."""
    return re.sub(r"[^a-z0-9]+", "-", f"{cpu_model()} {cores()} cores".lower()).strip("-")
