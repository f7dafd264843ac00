"""TensorRT plans on NVIDIA GPUs, on the instance threads.

    plan_file     finds the file, and says of what it is
    package       the package `tensorrt`, imported when the first plan is read
    engine        what an engine says of its tensors and profiles, as plain data
    completion    fills a configuration from that; compatibility checks one
    profiles      which profile runs a batch
    engine_run    one batch on an instance's execution contexts, stream and memory

Source: docs/spec/framework-backends.md section 6.5.
"""

EXTRA = "tensorrt"
