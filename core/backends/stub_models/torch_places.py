"""Where the tensors of a package are: the names of the leaves of its arguments and results, and their numbers.

It imports no PyTorch. Source: docs/spec/framework-backends.md section 6.3.
"""

from __future__ import annotations

import re

_INDEXED = re.compile(r"(?:(?!__).)*__(\d+)", re.DOTALL)


def named_leaves(tree, name):
    """The numbers of the leaves of nested dictionaries, lists and tuples, by names such as RESULT[key][0]."""
    if isinstance(tree, dict):
        parts = tree.items()
    elif isinstance(tree, (list, tuple)):
        parts = enumerate(tree)
    else:
        return {name: tree}
    found = {}
    for key, part in parts:
        found.update(named_leaves(part, f"{name}[{key}]"))
    return found


def places(names, leaves, arguments=()):
    """The number of the leaf of each of `names`: by the name of the leaf, by the number after two underscores, or by
    the name of an argument of `forward`. Raises KeyError with the name that means none.
    """
    numbers = set(leaves.values())
    found = {}
    for name in names:
        match = _INDEXED.fullmatch(name)
        if name in leaves:
            found[name] = leaves[name]
        elif match and int(match.group(1)) in numbers:
            found[name] = int(match.group(1))
        elif name in arguments:
            found[name] = arguments.index(name)
        else:
            raise KeyError(name)
    return found
