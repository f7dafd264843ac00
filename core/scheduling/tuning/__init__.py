"""A batcher that sets its own delay and size, so that the 99th percentile of the latencies stays under a target.

The controller is pure: it gets what was observed in a window of time and gives the setting for the next one. The tuner
observes executions and applies the settings. `bench/tuning` runs both against recorded arrivals.
Source: docs/spec/schedulers.md section 3.2, "A target instead of a delay".
"""
