"""What the server reports about itself: statistics, metrics, the log, and the hardware it runs on."""
