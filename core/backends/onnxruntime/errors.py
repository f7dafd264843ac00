"""The meaning of ONNX Runtime's exceptions: out of memory, a lost GPU, or a failure with a code.

Source: docs/spec/onnxruntime-backend.md section 5 (text), NVIDIA's CUDA runtime API reference (codes).
"""

from __future__ import annotations

import re

from core.errors import BackendFailed, OutOfMemory, ServerError

# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : the text"
_MESSAGE = re.compile(r"\[ONNXRuntimeError\] : (?P<code>\d+) : [A-Z_]+ : (?P<text>.*)", re.DOTALL)
_FAIL = "1"

# The CUDA provider ends its reports with " ; GPU=0 ; hostname=". The patterns require that, because a message may also
# repeat a client's text, and no client may bring the server down by sending an error message.
_OUT_OF_MEMORY = re.compile(
    r"Failed to allocate memory for requested buffer"  # the arena, on any device
    r"|std::bad_alloc"
    r"|CUDA (?:error|failure) 2:[^;]* ; GPU=\d"
    r"|(?:CUBLAS|CUDNN) (?:error|failure) \d+: \w*_ALLOC_FAILED[^;]* ; GPU=\d"
)

# After one of these errors every call in the process's CUDA context fails. 214 is an uncorrectable memory error, 700 an
# illegal address, 702 a kernel stopped at its time limit, 709 a destroyed context, 710 an assertion on the device, 714
# to 719 are faults of a kernel. cuDNN and cuBLAS report them as a failed execution.
_POISONED = re.compile(
    r"(?:CUDA (?:error|failure) (?:214|700|702|709|710|71[4-9]):"
    r"|(?:CUDNN|CUBLAS) (?:error|failure) \d+: \w*_EXECUTION_FAILED)[^;]* ; GPU=\d"
)


def is_poison(exc: BaseException) -> bool:
    """Whether the CUDA context is lost, so that nothing can run on its GPU until the process is replaced."""
    return _POISONED.search(str(exc)) is not None


def failure_of(
    exc: Exception, model_name: str, failed: type[ServerError] = BackendFailed, hint: str | None = None
) -> ServerError:
    """The server's error for an exception of ONNX Runtime: OutOfMemory, or `failed` with `hint`; with Triton's text."""
    whole = str(exc)
    match = _MESSAGE.match(whole)
    code, text = (match["code"], match["text"]) if match else (_FAIL, whole)
    message = f"onnx runtime error {code}: {text or type(exc).__name__}"
    if isinstance(exc, MemoryError) or _OUT_OF_MEMORY.search(whole):
        return OutOfMemory(message, model=model_name)
    return failed(message, hint=hint, model=model_name)
