"""The platforms as sources of settings: which one the server runs on, and the settings that it gives."""
