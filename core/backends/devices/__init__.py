"""The devices that models run on: CPU cores, and NVIDIA GPUs without any package."""
