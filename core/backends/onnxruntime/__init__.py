"""The backend `onnxruntime`. The package `onnxruntime` is imported here and nowhere else."""
