"""The server's reports about itself: statistics, metrics, the log, traces, and the hardware it runs on."""
