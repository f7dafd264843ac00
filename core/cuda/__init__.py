"""NVIDIA's driver: GPUs, streams, and memory of devices and of other processes."""
