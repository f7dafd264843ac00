"""The datatypes of tensors, and where those of a package are: the names and numbers of its arguments and results.

It imports no PyTorch. Source: docs/spec/framework-backends.md section 6.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# By PyTorch's own names.
DATATYPES = {
    "torch.bool": "BOOL",
    "torch.uint8": "UINT8",
    **{f"torch.int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"torch.float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}

_INDEXED = re.compile(r"(?:(?!__).)*__(\d+)", re.DOTALL)


def named_leaves(tree: Any, name: str) -> dict[str, int]:
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


def index_of(name: str) -> int | None:
    """The index of a name of the form <name>__<index>, after its first two underscores; None for any other."""
    match = _INDEXED.fullmatch(name)
    return int(match.group(1)) if match else None


def places(names: Iterable[str], leaves: Mapping[str, int], arguments: Sequence[str] = ()) -> dict[str, int]:
    """The number of the leaf of each of `names`: by the name of the leaf, by the number after two underscores, or by
    the name of an argument of `forward`. Raises KeyError with the name that means none.
    """
    numbers = set(leaves.values())
    found = {}
    for name in names:
        if name in leaves:
            found[name] = leaves[name]
        elif index_of(name) in numbers:
            found[name] = index_of(name)
        elif name in arguments:
            found[name] = arguments.index(name)
        else:
            raise KeyError(name)
    return found
