"""The gunicorn worker: connections on a gevent hub, for every protocol; each protocol has its own package."""
