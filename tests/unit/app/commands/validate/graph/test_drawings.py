"""The graph of an ensemble as text, for graphviz and as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from trident.app.commands.graph import GraphLayout, dot_drawing, layout_graph, svg_drawing, text_drawing
from trident.core.config.ensemble import EnsembleStep

SVG = "{http://www.w3.org/2000/svg}"


def step(model: str, sources: str, results: str, version: int = -1) -> EnsembleStep:
    """One letter is a tensor."""
    inputs, outputs = (tuple((name, name) for name in names) for names in (sources, results))
    return EnsembleStep(model=model, version=version, inputs=inputs, outputs=outputs)


def graph() -> GraphLayout:
    """`i` goes to two steps, whose outputs meet; one of them is an output, too."""
    steps = [step("join", "ab", "c"), step("left", "i", "a"), step('ri"g<ht', "i", "b", version=3)]
    return layout_graph("e", "i", "cb", steps)


def test_steps_stand_behind_those_that_they_need() -> None:
    assert graph().levels == ((1, 2), (0,))
    assert graph().edges == (
        (1, 0, ("a",)),
        (2, 0, ("b",)),
        (-1, 1, ("i",)),
        (-1, 2, ("i",)),
        (0, -2, ("c",)),
        (2, -2, ("b",)),
    )


def test_as_text() -> None:
    assert text_drawing([graph()]) == (
        'e: i -> c, b\n  1  left       i -> a\n  1  ri"g<ht:3  i -> b\n  2  join       a, b -> c\n'
    )


def test_for_graphviz() -> None:
    lines = dot_drawing([graph()]).splitlines()
    assert lines[0] == 'digraph "e" {'
    assert '  step2 [label="ri\\"g<ht:3"];' in lines
    assert '  step2 -> outputs [label="b"];' in lines


def test_as_svg() -> None:
    root = ElementTree.fromstring(svg_drawing([graph(), graph()]))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count('ri"g<ht:3') == 2
    assert len(list(root.iter(f"{SVG}rect"))) == 2 * 5
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    for box in root.iter(f"{SVG}rect"):
        assert int(box.attrib["x"]) + int(box.attrib["width"]) < width
        assert int(box.attrib["y"]) + int(box.attrib["height"]) < height


def test_without_ensembles_nothing_is_drawn() -> None:
    assert (text_drawing([]), dot_drawing([])) == ("", "")
    assert len(ElementTree.fromstring(svg_drawing([]))) == 1
