"""TensorFlow models: SavedModels and frozen graphs, each instance in a process of its own.

TensorFlow ends its whole process on some faults, and takes 480 MB and seconds to be imported: it gets the process of a
Python model. Where it is not installed, OpenVINO reads both formats.
Source: docs/spec/framework-backends.md section 6.4.
"""

EXTRA = "tensorflow"
