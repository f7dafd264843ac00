"""The library behind `triton_python_backend_utils`, and the program of a stub process.

Modules here import each other relatively, and nothing of the project but two modules of `core/interprocess` that need
only the standard library: these appear as modules of this package, so that both ends of the socket have one definition.
"""

from __future__ import annotations

import os

__path__.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4, "interprocess")))
