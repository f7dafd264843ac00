"""TensorRT plans on NVIDIA GPUs, on the instance threads.

    backend       finds and checks the file of a plan, and loads versions
    package       the package `tensorrt`, imported when the first plan is read
    engine        what an engine says of its tensors and profiles; completes and checks configurations by it
    engine_run    one batch on an instance's execution contexts, stream and memory

Source: docs/spec/framework-backends.md section 6.5.
"""
