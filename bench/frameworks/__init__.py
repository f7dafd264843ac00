"""The benchmark of the frameworks beside ONNX Runtime, and beside their own libraries."""
