"""The emulator of Vertex AI: deployments, probes, the prediction API and batch prediction jobs."""
