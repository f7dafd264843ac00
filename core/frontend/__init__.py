"""Code that all front ends share: waiting for the engine, request parameters, restricted APIs, classification."""
