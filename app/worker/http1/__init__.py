"""HTTP/1: reads requests from a connection, and writes the responses of a WSGI application."""
