"""Large text bodies in slices, so that no step of reading one holds the interpreter for long.

Parsers written in C hold the interpreter's lock until they return, and the thread of the hub waits for it: health,
and small requests, too. A large body is therefore cut into slices of whole elements, and each is parsed by itself. What
the slices cannot give, such as the error in a malformed document, the parser of whole documents gives.
"""
