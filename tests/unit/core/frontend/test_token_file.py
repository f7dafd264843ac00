from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid
from trident.core.frontend.access import read_tokens

FIRST, SECOND = b"first-token-0123", b"second+token/0123=="


def test_each_line_is_a_token_but_for_comments_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"# of the probes\r\n" + FIRST + b"\r\n\n  " + SECOND + b"\t")
    path.chmod(0o600)
    found = read_tokens(str(path))
    assert found.digests == (sha256(FIRST).digest(), sha256(SECOND).digest())
    assert not found.is_public
    path.chmod(0o604)
    assert read_tokens(str(path)).is_public


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it has no token"),
        (b"# nothing\n", "it has no token"),
        (FIRST + b"\nsecret and more of it", "line 2 has characters that no bearer token may have"),
        (b"short-secret", "the token in line 1 has less than 16 characters"),
        (b"".join(b"secret-token-%04d\n" % number for number in range(101)), "it has 101 tokens, and 100 are possible"),
        (b"#" * ((1 << 20) + 1), "it has more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_not_quoted(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ConfigInvalid) as refused:
        read_tokens(str(path))
    assert refused.value.message == f"the token file '{path}' cannot be used: {why}"
    assert "secret" not in str(refused.value)


def test_only_a_file_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(ConfigInvalid, match=r"it is not a file|Is a directory"):
            read_tokens(str(path))
    with pytest.raises(ConfigInvalid, match="No such file or directory"):
        read_tokens(str(tmp_path / "none"))
