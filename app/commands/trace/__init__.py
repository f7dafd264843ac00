"""`trident trace`: shows the requests of a trace file as trees of spans."""
