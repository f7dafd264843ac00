"""The server as a library: `import trident` (docs/library.md)."""
