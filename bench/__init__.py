"""The benchmark: `make bench`, or `python -m bench --help`. Not part of the installed package."""

import trident  # noqa: F401  # before the libraries that would tell their makers of their use
