from __future__ import annotations

from trident.core.http.payloads.payload import (
    CsvErrorLocation,
    ErrorLocation,
    instance_name,
    line_name,
    mismatch,
    unravelled,
)


def test_instances_count_from_zero_and_lines_from_one() -> None:
    assert ErrorLocation(instance_name, "IN").at(3) == "instance 3, input 'IN'"
    assert ErrorLocation(line_name, "IN").at(3, 1, 2) == "line 4, input 'IN', element [1,2]"


def test_without_rows_all_indices_belong_to_the_element() -> None:
    assert ErrorLocation(None, "IN").at(3, 1) == "input 'IN', element [3,1]"
    assert ErrorLocation(None, "IN").at() == "input 'IN'"


def test_an_element_is_located_by_its_position() -> None:
    assert unravelled(7, (2, 2, 3)) == (1, 0, 1)
    assert ErrorLocation(instance_name, "IN").element(7, (2, 2, 3)) == "instance 1, input 'IN', element [0,1]"


def test_a_csv_location_has_row_and_column() -> None:
    assert CsvErrorLocation("IN", 10).element(7, (2, 5)) == "row 2, column 13 (input 'IN')"


def test_a_mismatch_gives_the_expected_value() -> None:
    assert mismatch("there", "this", "that").message == "there: expected this, got that"
