"""Amazon SageMaker's container contract: routes, payloads, multi-model endpoints and settings."""
