from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from trident.core.observability.latencies import Exemplar
from trident.core.observability.metrics.exposition import MetricFamily, Sample, number, render


def lines(*families: MetricFamily) -> list[str]:
    page = render(families).decode()
    assert page == "" or page.endswith("\n")
    return page.splitlines()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-3, "-3"),
        (12.0, "12"),
        (16502972416.0, "16502972416"),
        (2**63 + 1, "9223372036854775809"),
        (0.1, "0.1"),
        (0.022556390977443608, "0.02255639097744361"),
        (1 / 3, "0.3333333333333333"),
        (1e17, "1e+17"),
        (math.nan, "Nan"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers_are_written_as_triton_writes_them(value: int | float, text: str) -> None:
    assert number(value) == text


def test_labels_are_sorted_with_those_of_histograms_and_summaries_last() -> None:
    found = lines(
        MetricFamily("f", "histogram", "Text", (Sample({"version": "1", "le": "5", "model": "m"}, 1, "_bucket"),)),
        MetricFamily("g", "summary", "Text", (Sample({"quantile": "0.5", "_tag": "x", "zone": "z"}, 2),)),
    )
    assert 'f_bucket{model="m",version="1",le="5"} 1' in found
    assert 'g{_tag="x",zone="z",quantile="0.5"} 2' in found


def test_a_page_may_pause_after_each_family() -> None:
    families = [MetricFamily(name, "gauge", "Text", (Sample({"model": "m"}, 1),)) for name in "abc"]
    order: list[str] = []

    def made() -> Iterator[MetricFamily]:
        for family in families:
            order.append(family.name)
            yield family

    page = render(made(), pause=lambda: order.append("pause"))
    assert order == ["a", "pause", "b", "pause", "c", "pause"]
    assert page == render(families)


def test_labels_of_equal_text_but_other_names_are_told_apart() -> None:
    samples = (Sample({"a": "1", "b": "2"}, 1), Sample({"b": "2", "a": "1"}, 2), Sample({"a": "2", "b": "1"}, 3))
    assert lines(MetricFamily("f", "gauge", "Text", samples))[2:] == [
        'f{a="1",b="2"} 1',
        'f{a="1",b="2"} 2',
        'f{a="2",b="1"} 3',
    ]


def test_a_family_without_labels_has_no_braces() -> None:
    assert lines(MetricFamily("f", "gauge", "Text", (Sample({}, 1),))) == ["# HELP f Text", "# TYPE f gauge", "f 1"]


def test_a_family_without_series_is_not_written() -> None:
    assert lines(MetricFamily("f", "gauge", "Text", ())) == []
    assert render([]) == b""


def test_characters_that_end_a_line_or_a_value_are_escaped() -> None:
    found = lines(MetricFamily("f", "gauge", 'a\\b\n"c"', (Sample({"x": 'a\\b\n"c"'}, 1),)))
    assert found == ['# HELP f a\\\\b\\n"c"', "# TYPE f gauge", 'f{x="a\\\\b\\n\\"c\\""} 1']


def test_a_parser_reads_the_page_back() -> None:
    labels = {"model": 'Ünï "code" \\ \n', "version": "1"}
    page = render(
        [
            MetricFamily("requests", "counter", "How\nmany", (Sample(labels, 7), Sample({}, 0.25))),
            MetricFamily("level", "gauge", "How high", (Sample({}, math.nan),)),
            MetricFamily(
                "time",
                "histogram",
                "How long",
                (
                    Sample({"le": "5"}, 1, "_bucket"),
                    Sample({"le": "+Inf"}, 2, "_bucket"),
                    Sample({}, 9, "_sum"),
                    Sample({}, 2, "_count"),
                ),
            ),
        ]
    )
    requests, level, time = text_string_to_metric_families(page.decode())
    assert (requests.type, requests.documentation) == ("counter", "How\nmany")
    # The parser calls every counter `_total`; the page does not.
    assert [(s.name, s.labels, s.value) for s in requests.samples] == [
        ("requests_total", labels, 7),
        ("requests_total", {}, 0.25),
    ]
    assert b"_total" not in page
    assert math.isnan(level.samples[0].value)
    assert [(s.name, s.value) for s in time.samples] == [
        ("time_bucket", 1),
        ("time_bucket", 2),
        ("time_sum", 9),
        ("time_count", 2),
    ]


def test_openmetrics_keeps_the_names_and_gives_up_the_types_that_contradict_them() -> None:
    labels = {"model": 'Ünï "code" \\ \n', "version": "1"}
    page = render(
        [
            MetricFamily("nv_requests", "counter", 'How "many"', (Sample(labels, 7),)),
            MetricFamily("trident_errors_total", "counter", "How many", (Sample({}, 3),)),
            MetricFamily("level", "gauge", "How high", (Sample({}, math.nan),)),
            MetricFamily("some", "untyped", "What", (Sample({}, 1),)),
            MetricFamily("none", "gauge", "Nothing", ()),
        ],
        openmetrics=True,
    ).decode()
    families = list(parse_openmetrics(page + "# EOF\n"))
    assert [(family.name, family.type) for family in families] == [
        ("nv_requests", "unknown"),
        ("trident_errors", "counter"),
        ("level", "gauge"),
        ("some", "unknown"),
    ]
    names = [sample.name for family in families for sample in family.samples]
    assert names == ["nv_requests", "trident_errors_total", "level", "some"]
    assert families[0].samples[0].labels == labels
    assert families[0].documentation == 'How "many"'


def test_the_id_of_an_exemplar_is_escaped() -> None:
    exemplar = Exemplar(request_id='a"b\\c', value=0.25, timestamp=1.5)
    family = MetricFamily("f", "histogram", "Text", (Sample({"le": "+Inf"}, 1, "_bucket", exemplar),))
    (line,) = render([family], openmetrics=True).decode().splitlines()[2:]
    assert line == r'f_bucket{le="+Inf"} 1 # {request_id="a\"b\\c"} 0.25 1.500'
    assert lines(family)[2] == 'f_bucket{le="+Inf"} 1'
