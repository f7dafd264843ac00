"""The receiver of a stream that has none."""

from __future__ import annotations

from typing import Final

from core.grpc.transport import Receiver
from core.inference.tensors import Buffer


class Nobody(Receiver):
    """Stands in for a call that has not begun, or has ended."""

    __slots__ = ()

    def room(self, size: int) -> memoryview | None:
        return None

    def filled(self, size: int) -> None:
        pass

    def take(self, content: Buffer) -> None:
        pass

    def leave_shared(self) -> None:
        pass

    def end(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    def moved(self) -> None:
        pass

    def drained(self) -> None:
        pass


NOBODY: Final = Nobody()
