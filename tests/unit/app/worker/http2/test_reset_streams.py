from __future__ import annotations

from trident.app.worker.http2.frames import ResetStreams


def test_the_latest_are_known():
    streams = ResetStreams(3)
    for id in (1, 3, 5, 7):
        streams.add(id)
    assert [id for id in range(10) if id in streams] == [3, 5, 7]
