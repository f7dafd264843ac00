"""The Engine protocol across processes: the client in a front end, the server in the engine's process."""
