"""docs/architecture.md names files that exist, and lists every room of the tree."""

from __future__ import annotations

import re

import pytest

from tests.project import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
TOP = ("core", "adapters", "app", "bench", "deploy", "docker", "docs", "tests")
PATH = re.compile(rf"(?<![\w/.-])((?:{'|'.join(TOP)})(?:/[\w.-]+)+/?)")
TREE = re.compile(r"```text\n(.*?)```", re.DOTALL)
MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)


def missing_paths(page: str) -> list[str]:
    return sorted({path for path in PATH.findall(page) if not (ROOT / path.rstrip(".")).exists()})


def listed_rooms(tree: str) -> dict[str, set[str]]:
    """The entries of the tree by their top-level folder; folders end with a slash."""
    rooms: dict[str, set[str]] = {}
    top = ""
    for line in tree.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            top = name.rstrip("/")
            rooms[top] = set()
        else:
            rooms[top].add(name)
    return rooms


def actual_rooms(top: str) -> set[str]:
    return {f"{path.name}/" for path in (ROOT / top).iterdir() if (path / "__init__.py").is_file()}


def test_every_named_file_exists() -> None:
    assert missing_paths(PAGE) == []
    assert missing_paths("see core/no_such.py and core/errors.py, app/no_room/") == ["app/no_room/", "core/no_such.py"]


def test_the_pictures_and_the_tree_name_what_there_is() -> None:
    pictures = MERMAID.findall(PAGE)
    assert len(pictures) == 4
    assert [len(PATH.findall(picture)) > 8 for picture in pictures] == [False, True, True, True]
    (tree,) = TREE.findall(PAGE)
    assert set(listed_rooms(tree)) == set(TOP)
    assert all((ROOT / top).is_dir() for top in TOP)


@pytest.mark.parametrize("top", ["core", "adapters", "app"])
def test_the_tree_lists_every_room(top: str) -> None:
    (tree,) = TREE.findall(PAGE)
    listed = listed_rooms(tree)[top]
    assert {name for name in listed if name.endswith("/")} == actual_rooms(top)
    assert all((ROOT / top / name).exists() for name in listed)
