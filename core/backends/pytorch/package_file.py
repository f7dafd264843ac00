"""Finds packages of AOTInductor and programs of torch.export, and checks what can be known without PyTorch.

Source: docs/spec/framework-backends.md section 6.3.
"""

from __future__ import annotations

import json
import platform
import zipfile
from pathlib import Path

from core.backends.file_content import content_hint
from core.backends.model_path import path_of_model
from core.config.schema import ModelConfig
from core.errors import ModelLoadFailed

DEFAULT_FILE = "model.pt2"

# The names of PyTorch's instruction sets that are not the processor's own names in capitals.
_FLAGS = {"AVX512": "avx512f"}
_CPU_INFO = Path("/proc/cpuinfo")


def package_path(version: Path, config: ModelConfig) -> Path:
    """The file in the directory of a version. Raises RepositoryUnavailable with Triton's text."""
    name = config.default_model_filename or DEFAULT_FILE
    message = f'PyTorch inductor model file "{version / name}" is unreachable or inaccessible.'
    return path_of_model(version, config, name, message=message)


def check_package(path: Path, model: str) -> None:
    """Raise ModelLoadFailed for a file that is no package, or that was compiled for another processor.

    A package of AOTInductor is machine code: an instruction that this processor lacks would end the process.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            metadata = [json.loads(archive.read(name)) for name in names if name.endswith("_metadata.json")]
    except (OSError, ValueError, zipfile.BadZipFile) as exc:
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' is not a package of torch.export or AOTInductor: {exc}",
            hint=content_hint(path)
            or "compare the file with the original, or write it anew with torch.export.save or "
            "torch._inductor.aoti_compile_and_package",
            model=model,
        ) from exc
    if not any(name.endswith("archive_format") for name in names):
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' is not a package of torch.export or AOTInductor",
            hint="a TorchScript archive is called model.pt; a pickle of torch.save is never loaded",
            model=model,
        )
    for entry in metadata:
        _check_machine(entry, path, model)


def _check_machine(metadata: object, path: Path, model: str) -> None:
    if not isinstance(metadata, dict):
        return
    machine = str(metadata.get("AOTI_MACHINE", platform.machine()))
    needed = [_FLAGS.get(name, name.lower()) for name in str(metadata.get("AOTI_CPU_ISA", "")).split()]
    missing = [machine] if machine != platform.machine() else _missing_flags(needed)
    if missing:
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' was compiled for a processor with {', '.join(missing)}, "
            "which this one has not",
            hint="compile the package on a machine like this one",
            model=model,
        )


def _missing_flags(needed: list[str]) -> list[str]:
    """The instruction sets that the processor lacks; none where the system does not list them as x86 does."""
    try:
        text = _CPU_INFO.read_text()
    except OSError:
        return []
    flags = {flag for line in text.splitlines() if line.startswith("flags") for flag in line.partition(":")[2].split()}
    return [name for name in needed if name not in flags] if flags else []
