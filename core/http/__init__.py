"""The HTTP front end: the v2 protocol as a WSGI application."""
