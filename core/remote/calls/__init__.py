"""Messages between a front end and the engine: requests, responses, errors, and the calls of the protocol."""
