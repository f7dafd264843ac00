"""The benchmark of models in Python beside ONNX models of the same function."""
