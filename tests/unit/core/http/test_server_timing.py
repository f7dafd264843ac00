"""The header Server-Timing."""

from __future__ import annotations

import re

from trident.core.http.front_end import server_timing
from trident.core.inference.request import CloseReason, InferenceTimes


def test_times_are_milliseconds_in_the_grammar_of_the_header() -> None:
    text = server_timing(InferenceTimes(120_000, 1_000, 2_345_678, 0, 8, CloseReason.DELAY))
    durations = "queue;dur=0.120, compute_input;dur=0.001, compute_infer;dur=2.346, compute_output;dur=0.000"
    assert text == f'{durations}, batch;desc="8", close;desc="delay"'
    metric = r'[a-z_]+;(dur=[0-9.]+|desc="[^"]*")'
    assert re.fullmatch(f"{metric}(, {metric})*", text)
