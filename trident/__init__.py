"""An inference server that speaks Triton's protocol. docs/architecture.md shows its parts: core, adapters and app.

In the source tree these are links to the folders beside this one; an installation has one package, `trident`.
"""

from trident.app.version import VERSION as __version__

__all__ = ["__version__"]
