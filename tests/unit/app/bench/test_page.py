"""The page of a measurement: rows of bars as SVG, as a file of its own."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from trident.app.bench.page import picture, rows


def test_rows_are_as_long_as_their_values_and_a_mark_fits() -> None:
    plot = rows("sizes", ["ours", "a & b"], [("GB", [(0.408, 0), (10.0, 1)])], mark=(20.0, "limit"))
    ElementTree.fromstring(picture(plot))

    short, long = map(float, re.findall(r'<rect class="s\d fill"[^>]* width="([\d.]+)"', plot))
    left = float(re.findall(r'<rect class="s0 fill" x="([\d.]+)"', plot)[0])
    mark = float(re.findall(r'<line class="limit" x1="([\d.]+)"', plot)[0])
    assert short / long == pytest.approx(0.408 / 10, rel=0.01)
    assert mark - left == pytest.approx(2 * long, rel=0.01)
    assert re.findall(r'class="value"[^>]*>([^<]*)<', plot) == ["0.408", "10"]
