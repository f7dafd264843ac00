"""The settings of the backends and of the GPUs that they use.

Source: docs/spec/server-options.md section 2 "Cache".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import FLAG, FOLDER, TEXT, BadValue, Kind, choice, number

_SECTION = "Backends"


def split_backend_setting(text: str) -> tuple[str, str, str]:
    """Backend ("" for all), name and value of one value of --backend-config. Raises BadValue."""
    backend, comma, rest = text.partition(",") if "," in text else ("", "", text)
    name, equals, value = rest.partition("=")
    if (comma and not backend) or not (name and equals and value):
        raise BadValue(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}")
    return backend, name, value


def split_backend_settings(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Values of --backend-config by backend and name; the last of several values for one name counts."""
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        backend, name, value = split_backend_setting(text)
        settings.setdefault(backend, {})[name] = value
    return settings


def _backend_setting(text: str) -> str:
    split_backend_setting(text)
    return text


BACKEND_SETTING = Kind("[<backend>,]<setting>=<value>", _backend_setting)


@dataclass(frozen=True, kw_only=True, repr=False)
class BackendSettings:
    """Part of ServerSettings."""

    backend_config: tuple[str, ...] = repeated(
        "backend-config",
        BACKEND_SETTING,
        "A setting of one backend, or of all backends without the name of one.",
        section=_SECTION,
    )
    backend_directory: str = option(
        "/opt/tritonserver/backends",
        "backend-directory",
        FOLDER,
        "Folder of the backends that are written in Python, NAME/model.py each.",
        section=_SECTION,
    )
    strict_python_outputs: bool = option(
        False,
        "strict-python-outputs",
        FLAG,
        "Fail a request to a Python model whose outputs have a name, datatype, shape or number of rows that the "
        "configuration does not have; without it, the log warns once.",
        section=_SECTION,
        own=True,
    )
    min_supported_compute_capability: float = option(
        6.0,
        "min-supported-compute-capability",
        number(0),
        "Minimum CUDA compute capability of the GPUs that are used.",
        section=_SECTION,
    )
    gpu_missing: str = option(
        "error",
        "gpu-missing",
        choice("gpu-missing", "error", "cpu"),
        "What becomes of a model whose configuration asks for a GPU (KIND_GPU) on a machine without one: it fails to "
        "load, or it runs on the CPU, with a warning in the log.",
        section=_SECTION,
        own=True,
    )
    visible_gpus: str | None = option(
        None,
        "",
        TEXT,
        "GPUs to use, by number or UUID; an empty value hides all GPUs.",
        section=_SECTION,
        variable="CUDA_VISIBLE_DEVICES",
        shown_default="all",
        empty_counts=True,
    )

    @property
    def backend_settings(self) -> dict[str, dict[str, str]]:
        """The values of --backend-config by backend, and of the options that are settings of a backend.

        Those for all backends are under "".
        """
        settings = split_backend_settings(self.backend_config)
        settings.setdefault("", {}).setdefault("backend-directory", self.backend_directory)
        if self.strict_python_outputs:
            settings.setdefault("python", {}).setdefault("strict-outputs", "true")
        return settings
