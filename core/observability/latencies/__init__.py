"""The distributions of a model version's durations: histograms, and the quantiles of the last minute."""
