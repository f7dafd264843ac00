"""OpenVINO models on the CPU, on the instance threads.

Source: docs/spec/framework-backends.md section 6.6.
"""
