"""Azure ML's container contract: the mounted model, two probes and the scoring route."""
