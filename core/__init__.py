"""Serves models: everything between a front end's protocol and a framework. Knows no platform and no process."""
