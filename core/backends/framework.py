"""Frameworks that are not installed: each backend but that of ONNX Runtime does without its own until a model loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from core.errors import NotInstalled


def is_installed(module: str) -> bool:
    """Whether the framework of this name is there; it is not imported."""
    return find_spec(module) is not None


def check_installed(module: str, extra: str, model: str) -> None:
    """Raise NotInstalled, which names the extra of this distribution that installs the framework, if it is missing."""
    if not is_installed(module):
        raise NotInstalled(
            f"failed to load model '{model}': the framework {module} is not installed",
            hint=install_hint(extra),
            model=model,
        )


@contextmanager
def importing(backend: str, extra: str) -> Iterator[None]:
    """Turn the ImportError of a framework that is missing or broken into NotInstalled."""
    try:
        yield
    except ImportError as error:
        raise NotInstalled(f"unable to import backend '{backend}': {error}", hint=install_hint(extra)) from error


def install_hint(extra: str) -> str:
    """How to install the framework of an extra."""
    return f"install its framework: pip install 'trident-inference[{extra}]'"
