"""The model repositories that the benchmarks serve."""
