from __future__ import annotations

import pytest

from trident.core.observability.latency_options import DEFAULT_QUANTILES, LatencyOptions, parse_quantiles


@pytest.mark.parametrize(
    ("text", "quantiles", "refused"),
    [
        ("0.5:0.05,0.99:0.001", (0.5, 0.99), []),
        ("0.99:0,0.5:0.1,0.99:0.2", (0.99, 0.5), []),
        ("0.5:0.05,0.9,1.5:0.1,x:0.1,0.7:y,nan:0.1", (0.5,), ["0.9", "1.5:0.1", "x:0.1", "0.7:y", "nan:0.1"]),
        ("", DEFAULT_QUANTILES, [""]),
    ],
)
def test_invalid_quantiles_are_logged_and_left_out(
    text: str, quantiles: tuple[float, ...], refused: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert parse_quantiles(text) == quantiles
    assert caplog.messages == [f"Invalid option: [{each}]" for each in refused]


def test_one_kind_is_enough_to_measure() -> None:
    assert not LatencyOptions().is_any
    assert LatencyOptions(histograms=True).is_any
    assert LatencyOptions(summaries=True).is_any
