"""Everything that a person starts: the command line, the settings, the supervisor of processes, and the worker."""
