"""The benchmark of plain HTTP: every case on every server, in turn."""
