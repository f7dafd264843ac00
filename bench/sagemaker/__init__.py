"""The benchmark of SageMaker's container."""
