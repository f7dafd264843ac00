"""What the person who starts a server sees: tables, a progress bar, and the report of the start."""
