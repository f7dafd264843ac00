"""Sites: how the applications of the ports and the engine are put together in a process."""
