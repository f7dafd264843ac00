"""What one run of the benchmark measured, and its two files: JSON for machines, Markdown for people."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import BareLoop, Cell, Growth


@dataclass(slots=True)
class Results:
    """One run. `bare` is the loop's best setting and its speed next to case (e); memory in MB (2**20 bytes)."""

    date: str
    machine: dict[str, object]
    seconds: int
    cells: list[Cell] = field(default_factory=list)
    bare: BareLoop | None = None
    growths: list[Growth] = field(default_factory=list)
    loaded_mb: dict[str, float] = field(default_factory=dict)

    def cell(self, case: str, connections: int, server: str = "trident") -> Cell | None:
        for cell in self.cells:
            if (cell.case, cell.connections, cell.server) == (case, connections, server):
                return cell
        return None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Results:
        document = json.loads(path.read_text())
        document["cells"] = [Cell(**cell) for cell in document["cells"]]
        document["growths"] = [Growth(**growth) for growth in document["growths"]]
        document["bare"] = document["bare"] and BareLoop(**document["bare"])
        return cls(**document)
