"""The slowest requests: what scrapes, probes, reloads, idle connections and the garbage collector add to them."""
