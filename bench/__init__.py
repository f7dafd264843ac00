"""The benchmark: `make bench`, or `python -m bench --help`. Not part of the installed package."""
