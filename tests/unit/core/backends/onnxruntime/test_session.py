"""Sessions: the exceptions of ONNX Runtime."""

from __future__ import annotations

from trident.core.backends.onnxruntime.session import FAILURES


def test_every_exception_of_onnx_runtime_is_known() -> None:
    names = {kind.__name__ for kind in FAILURES}
    assert {"EPFail", "Fail", "InvalidArgument", "InvalidProtobuf", "NoSuchFile", "RuntimeException"} <= names
    assert not {"ValueError", "UnicodeDecodeError", "Exception"} & names
