"""The connection between a front end and the engine: frames, outbox, and what drives the socket."""
