"""The console: a page for people, and the data that it shows."""
