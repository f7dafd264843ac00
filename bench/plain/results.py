"""What one run of the plain benchmark measured."""

from __future__ import annotations

import dataclasses
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine_load import LoadSeen
from bench.plain.measure import BareLoop, Cell, Growth

_MEASURED = ("requests", "requests_per_second", "p50_ms", "p99_ms", "cpu_us", "mean_batch", "resident_mb")


@dataclass(slots=True)
class Results:
    """One run; a cell is the median of `rounds` rounds of `seconds`.

    `bare` is the loop's best setting and its speed next to case (e). Memory is in MB (2**20 bytes). `beside` is the
    command of the other server, empty if there was none.
    """

    date: str
    machine: dict[str, object]
    seconds: int
    rounds: int = 1
    cells: list[Cell] = field(default_factory=list)
    bare: BareLoop | None = None
    growths: list[Growth] = field(default_factory=list)
    loaded_mb: dict[str, float] = field(default_factory=dict)
    beside: str = ""
    seen: LoadSeen | None = None

    def cell(self, case: str, connections: int, server: str = "trident") -> Cell | None:
        for cell in self.cells:
            if (cell.case, cell.connections, cell.server) == (case, connections, server):
                return cell
        return None

    def note(self, rounds: list[Cell]) -> Cell:
        """Add the median of the rounds of one cell: the machine is not equally fast from second to second."""
        middle = {name: statistics.median([getattr(cell, name) for cell in rounds]) for name in _MEASURED}
        cell = dataclasses.replace(rounds[0], errors=sum(cell.errors for cell in rounds), **middle)
        self.cells.append(cell)
        return cell

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Results:
        document = json.loads(path.read_text())
        document["cells"] = [Cell(**cell) for cell in document["cells"]]
        document["growths"] = [Growth(**growth) for growth in document["growths"]]
        document["bare"] = document["bare"] and BareLoop(**document["bare"])
        document["seen"] = document.get("seen") and LoadSeen(**document["seen"])
        return cls(**document)
