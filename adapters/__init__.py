"""The cloud platforms' container contracts, each as a WSGI application over the v2 core."""
