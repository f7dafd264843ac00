"""Sequences in a configuration: their batching, their controls, and the states that a model hands on to itself."""
