"""Metrics as lines on stdout, for platforms that scrape no page: what happened in each interval."""
