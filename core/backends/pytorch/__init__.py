"""PyTorch models: TorchScript on the instance threads; packages and modules in Python in processes of their own.

Source: docs/spec/framework-backends.md sections 6.2 and 6.3.
"""
