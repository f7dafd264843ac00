"""The emulator of SageMaker: archives, probes, invocations, the runtime API and multi-model endpoints."""
