"""Data between processes of one server: frames on a socket, and shared memory."""
