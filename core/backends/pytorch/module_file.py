"""Loads TorchScript archives.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from core.backends.pytorch.archive_file import check_archive
from core.errors import ModelLoadFailed


def load_module(path: Path, device: str, model: str) -> Any:
    """The module in the archive at `path`, on `device` (`cpu`, `cuda:0`). Raises ModelLoadFailed."""
    check_archive(path, model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(str(path), map_location=device)
    except RuntimeError as exc:
        text = str(exc)
        # A native stack may follow the message.
        message = text.partition("\nException raised from")[0].strip()
        raise ModelLoadFailed(f"failed to load model '{model}': {message}", hint=_load_hint(text), model=model) from exc


def _load_hint(text: str) -> str | None:
    if "Unknown builtin op" in text or "Unknown type name" in text:
        return "the model uses operators of a library that is not installed here"
    if "version" in text and "supported" in text:
        return f"the archive was made by a newer PyTorch than the installed {torch.__version__}"
    return None
