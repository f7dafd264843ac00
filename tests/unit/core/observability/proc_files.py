"""The files of /proc that the meters read, in a folder of the test."""

from __future__ import annotations

from pathlib import Path

MEMINFO = "MemTotal:       2000 kB\nMemFree:        100 kB\nMemAvailable:   1500 kB\nHugePages_Total:    0\n"


class Proc:
    """A folder with `stat` and `meminfo`."""

    def __init__(self, folder: Path) -> None:
        self.stat = folder / "stat"
        self.meminfo = folder / "meminfo"
        self.meminfo.write_text(MEMINFO)
        self.ticks(0, 0, 0, 0, 0, 0, 0, 0)

    def ticks(self, *fields: int) -> None:
        """user nice system idle iowait irq softirq steal, since boot."""
        self.stat.write_text(f"cpu  {' '.join(map(str, fields))} 7 7\ncpu0 9 9 9 9 9 9 9 9 9 9\nintr 5\n")
