"""TensorRT plans on NVIDIA GPUs, on the instance threads.

    backend       finds and checks the file of a plan, loads versions, and runs batches
    engine        the package `tensorrt`, and what an engine says of its tensors and profiles

Source: docs/spec/framework-backends.md section 6.5.
"""
