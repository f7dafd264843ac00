"""The commands beside `serve`. The server imports nothing of them, and finds them by name: commands.py."""
