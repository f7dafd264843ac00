"""PyTorch models: TorchScript on the instance threads.

Source: docs/spec/framework-backends.md sections 6.2 and 6.3.
"""

EXTRA = "torch"
