"""Emulators: a cloud platform's behaviour around one container on this machine, for tests before a deployment."""
