"""NVIDIA's driver, called through ctypes: memory of other processes, streams, events and memory of a device.

    CudaDriver      the calls, in the primary context of a device
    CudaStream      a stream of one instance: asynchronous copies, and waiting for them without the interpreter's lock
    DeviceMemory    memory on a device that grows when more is asked for

Source: NVIDIA's CUDA driver API reference.
"""
