"""The benchmark of Vertex AI's container."""
