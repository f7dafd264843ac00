"""Tracing: which requests are sampled, what is noted of them, and where it goes.

The engine's process decides and collects (`Tracer`); front ends add the times at which they received and sent. One
thread (`TraceThread`) writes, so that no request waits for a disk or a collector.
Source: docs/spec/trace-and-log.md sections 1 to 4.
"""
