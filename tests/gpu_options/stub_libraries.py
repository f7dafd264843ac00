"""Stand-ins for NVIDIA's libraries: what ONNX Runtime's providers link, without a GPU, a driver or 2 GB of CUDA.

With them the dynamic linker loads a provider, which then parses its options with its own code. The first call that
needs a device fails with CUDA's error 100, "no device", or with the one that the environment says. Needs a C compiler
and readelf.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

from tests.gpu_options.parse import NO_DEVICE

_NVIDIA = re.compile(r"lib(?:cu|nv)")
_NEEDED = re.compile(r"\(NEEDED\).*\[(\S+)\]")
ERROR = "TRIDENT_STAND_IN_ERROR"
"""The variable with the number of another error."""

# The answers other than an error that the providers need on their way to the first device call.
_ANSWERS = {
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *count) { *count = 1; return 0; }",
    "cudaGetErrorString": f'const char *cudaGetErrorString(int code) {{ return "{NO_DEVICE}"; }}',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int code) { return "cudaErrorNoDevice"; }',
    "cudaGetLastError": "int cudaGetLastError(void) { return 0; }",
    "cudaPeekAtLastError": "int cudaPeekAtLastError(void) { return 0; }",
    "__cudaRegisterFatBinary": "void **__cudaRegisterFatBinary(void *f) { static void *handle[4]; return handle; }",
}


def make_stub_libraries(providers: list[Path], folder: Path) -> None:
    """Write a library for each of NVIDIA's that `providers` link, with every symbol that they take from it."""
    symbols: defaultdict[str, set[str]] = defaultdict(set)
    for provider in providers:
        needed = [name for name in _NEEDED.findall(_readelf("-d", provider)) if _NVIDIA.match(name)]
        for name in needed:
            symbols[name] |= set()
        for symbol, library in _undefined(provider):
            symbols[library or _home(symbol, needed)].add(symbol)
    for library, names in symbols.items():
        _compile(library, sorted(names), folder)


def _readelf(option: str, library: Path) -> str:
    return subprocess.run(
        ["readelf", "-W", option, str(library)], check=True, capture_output=True, text=True, env={"LC_ALL": "C"}
    ).stdout


def _undefined(provider: Path) -> list[tuple[str, str]]:
    """NVIDIA's symbols that `provider` needs, each with its library if it names it as the symbol's version."""
    found = []
    for line in _readelf("--dyn-syms", provider).splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[6] == "UND" and columns[3] == "FUNC":
            name, _, version = columns[7].partition("@")
            if _NVIDIA.match(version) or not version:
                found.append((name, version.split()[0] if version else ""))
    return found


def _home(symbol: str, needed: list[str]) -> str:
    """The library of a symbol without a version: the driver's begin with cu, and TensorRT's parser says so."""
    part = "libcuda.so" if symbol.startswith("cu") else "onnxparser" if "OnnxParser" in symbol else "libnvinfer.so"
    return next(name for name in needed if part in name)


def _compile(library: str, symbols: list[str], folder: Path) -> None:
    source, versions, target = folder / f"{library}.c", folder / f"{library}.map", folder / library
    beginning = (
        f'#include <stdlib.h>\nstatic int error(void) {{ char *e = getenv("{ERROR}"); return e ? atoi(e) : 100; }}'
    )
    answers = (_ANSWERS.get(name, f"int {name}(void) {{ return error(); }}") for name in symbols)
    source.write_text("\n".join([beginning, *answers]))
    versions.write_text(f"{library} {{ global: *; }};\n")
    # TensorRT's and the driver's symbols have no versions.
    script = [] if library.startswith(("libnv", "libcuda.so")) else [f"-Wl,--version-script={versions}"]
    command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", *script, "-o", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
