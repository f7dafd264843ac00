"""Streams a WAV file to a voice detector and prints when somebody begins to speak and stops.

    python deploy/detect_voice.py FILE.wav ws://HOST:8000/v2/models/voice_detector/stream?binary=chunk

Needs the `websockets` package. The file has 16-bit samples at 16 kHz, one channel. They are sent in pieces of 32 ms
without waiting for answers, which arrive in order: one for each piece, with the probability of speech.
"""

from __future__ import annotations

import json
import sys
import threading
import wave
from collections.abc import Iterable, Iterator

from websockets.sync.client import ClientConnection, connect

RATE = 16000
PIECE = 512
# Speech begins above the first, and ends when the second was not reached for so many pieces.
BEGINS, ENDS, PATIENCE = 0.5, 0.35, 6


def pieces_of(path: str) -> list[bytes]:
    """The samples in pieces, the last one filled up with silence. Raises SystemExit for another kind of file."""
    with wave.open(path, "rb") as file:
        if (file.getframerate(), file.getsampwidth(), file.getnchannels()) != (RATE, 2, 1):
            raise SystemExit(f"{path} must have 16-bit samples at {RATE} Hz and one channel")
        samples = file.readframes(file.getnframes())
    size = 2 * PIECE
    return [samples[at : at + size].ljust(size, b"\0") for at in range(0, len(samples), size)]


def probabilities(stream: ClientConnection, pieces: list[bytes]) -> Iterator[float]:
    """Send the pieces, and give the probability of each as it arrives. Raises SystemExit for an error."""

    def send() -> None:
        for piece in pieces:
            stream.send(piece)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    for _ in pieces:
        answer = json.loads(stream.recv())
        if "error" in answer:
            raise SystemExit(answer["error"])
        yield answer["outputs"][0]["data"][0]


def events(probabilities: Iterable[float]) -> Iterator[tuple[float, str]]:
    """The times in seconds at which somebody begins to speak, and stops."""
    speaks, quiet, time_s = False, 0, 0.0
    for number, probability in enumerate(probabilities):
        time_s = number * PIECE / RATE
        if not speaks and probability >= BEGINS:
            speaks, quiet = True, 0
            yield time_s, "speech begins"
        elif speaks:
            quiet = quiet + 1 if probability < ENDS else 0
            if quiet == PATIENCE:
                speaks = False
                yield time_s - (PATIENCE - 1) * PIECE / RATE, "speech ends"
    if speaks:
        yield time_s, "the file ends in speech"


def main(path: str, address: str) -> None:
    with connect(address) as stream:
        for time_s, text in events(probabilities(stream, pieces_of(path))):
            print(f"{time_s:6.2f} s  {text}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
