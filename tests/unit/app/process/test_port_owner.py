from __future__ import annotations

from pathlib import Path

from trident.app.process.port_owner import listening_inodes, owner_of

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 100 0 0 10 0
   2: 00000000:1F42 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4713 1 0 100 0 0 10 0
"""


def test_only_a_socket_that_listens_on_the_port_is_found() -> None:
    assert listening_inodes(TABLE, 8000) == {"4711"}
    assert listening_inodes(TABLE, 8001) == set()


def test_the_owner_of_a_port_is_found_in_proc(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TABLE)
    for pid, inode in (("7", "4713"), ("8", "4711")):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "3").symlink_to(f"socket:[{inode}]")
        (tmp_path / pid / "cmdline").write_bytes(b"python\0server\0models\0--key=secret\0")
    assert owner_of(8000, tmp_path) == "python server models (pid 8)"
    (tmp_path / "8" / "cmdline").write_bytes(b"")  # a thread of the kernel has none
    (tmp_path / "8" / "comm").write_text("kworker\n")
    assert owner_of(8000, tmp_path) == "kworker (pid 8)"
    assert owner_of(8001, tmp_path) == ""
