"""What a request for inference and its responses are, for every front end and for the engine."""
