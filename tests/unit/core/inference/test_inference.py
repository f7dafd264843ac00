"""The inference request and its times."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.packed_tensors import packed_request
from trident.core.inference.pending_request import CollectedFlushes, Deferred, Flush, ResponseWindow, flush
from trident.core.inference.request import CloseReason, InferenceTimes, InputTensor
from trident.core.inference.response import InferenceResponse, Outputs, OutputTensor, PackedOutputs, ReceivedOutput
from trident.core.inference.tensors import TensorLayout, bytes_array, layout_of, pack_bytes, unpack_bytes
from trident.core.options import WindowLimits


def test_split_request_reports_the_longest_times_and_last_close_reason() -> None:
    first, second = (
        InferenceTimes(1, 20, 3, 40, 5, CloseReason.SHAPE),
        InferenceTimes(10, 2, 30, 4, 1, CloseReason.FULL),
    )
    assert InferenceTimes.longest([first, None, second]) == InferenceTimes(10, 20, 30, 40, 5, CloseReason.FULL)
    assert InferenceTimes.longest([None]) is None


# --- tensors, and runs of them


@pytest.mark.parametrize("count", [0, 1, 1 << 14, (1 << 14) + 1, 1 << 15, 100_000])
def test_any_number_of_strings_round_trips(count: int) -> None:
    strings = [b"%d" % number for number in range(count)]
    packed = pack_bytes(strings)
    assert packed == b"".join(len(each).to_bytes(4, "little") + each for each in strings)
    unpacked = unpack_bytes(packed, count, name="IN", model="simple")
    assert bytes_array(unpacked, (count, 1)).tolist() == [[each] for each in strings]


def test_equal_tensors_share_one_layout() -> None:
    described = [("A", "INT32", (1, 3), 12), ("B", "FP64", (1, 1), 8)]
    layout = layout_of(described)
    assert layout is layout_of(list(described))
    assert layout is not layout_of(described[:1])
    assert layout.size == 20
    assert layout.entries[1] == ("B", "FP64", (1, 1), 12, 20)
    assert layout_of([]).size == 0
    first = layout_of([("A", "INT8", (0,), 0)])
    for size in range(1, 1100):
        assert layout_of([("A", "INT8", (size,), size)]).size == size
    assert layout_of([("A", "INT8", (0,), 0)]).entries == first.entries


def test_packed_inputs_have_the_same_size_and_are_cut_on_first_use() -> None:
    request = packed_request([1, 2, 3], 0.5, rows=2)
    assert request.nbytes == 40
    inputs = [*request.inputs, InputTensor("C", "BYTES", (1,), memoryview(b"\x01\0\0\0x"))]
    assert request.with_inputs(inputs, model_version=-1, id="").nbytes == 45
    request = packed_request([1, 2, 3], 0.5)
    first, second = request.inputs
    assert (first.name, first.datatype, first.shape) == ("A", "INT32", (1, 3))
    assert first.array.tolist() == [[1, 2, 3]]
    assert second.array.tolist() == [[0.5]]
    assert second.array.flags.aligned
    assert request.inputs[0] is first


# --- streaming


STRINGS = np.array([b"abc", b"", b"defgh"], dtype=object)


@pytest.mark.parametrize(
    ("outputs", "size"),
    [
        ([OutputTensor("A", "FP32", (2,), np.zeros(2, np.float32))], 8),
        ([OutputTensor("A", "BYTES", (3,), STRINGS)], 8),
        ([ReceivedOutput("A", "BYTES", (1,), memoryview(b"\1\0\0\0a"))], 5),
        (PackedOutputs(TensorLayout((("A", "UINT8", (2,), 0, 2), ("B", "UINT8", (1,), 2, 3))), memoryview(b"abc")), 3),
    ],
)
def test_a_response_counts_with_its_bytes(outputs: Outputs, size: int) -> None:
    window = ResponseWindow(WindowLimits(responses=100, nbytes=size + 1))
    window.put(InferenceResponse("m", 1, outputs))
    assert not window.is_full
    window.put(InferenceResponse("m", 1, [OutputTensor("A", "UINT8", (1,), np.zeros(1, np.uint8))]))
    assert window.is_full
    window.take(1)
    assert not window.is_full


# --- a request inside the engine


def test_run_makes_each_call_once_including_added_ones() -> None:
    deferred = Deferred()
    made: list[str] = []

    def first() -> None:
        made.append("first")
        deferred.add(second)

    def second() -> None:
        made.append("second")

    deferred.add(first)
    deferred.add(first)
    assert made == []
    deferred.run()
    assert made == ["first", "second"]
    deferred.run()
    assert len(made) == 2


class Callers:
    """Two callers that record their flushes."""

    def __init__(self) -> None:
        self.told: list[str] = []
        # One object for all calls, as callers have it.
        self.a: Flush = lambda: self.told.append("a")
        self.b: Flush = lambda: self.told.append("b")


def test_error_does_not_prevent_flushes() -> None:
    callers = Callers()

    def deliver() -> None:
        with CollectedFlushes():
            flush([callers.a])
            raise KeyError

    with pytest.raises(KeyError):
        deliver()
    assert callers.told == ["a"]
