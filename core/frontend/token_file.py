"""The file with the bearer tokens that a server accepts.

One token a line; empty lines and lines that begin with `#` are passed over. Of the tokens only their digests leave this
module, and no error or log line quotes a part of the file. Source: RFC 6750 section 2.1 (the characters of a token).
"""

from __future__ import annotations

import os
import re
import stat
from hashlib import sha256
from typing import NamedTuple

from core.errors import ConfigInvalid

MOST_TOKENS = 100
SHORTEST = 16
_MOST_BYTES = 1 << 20
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_HINT = "one token a line, for example from: openssl rand -hex 32"


class TokenFile(NamedTuple):
    """The SHA-256 digests of the tokens, and whether every user of the machine may read the file."""

    digests: tuple[bytes, ...]
    is_public: bool


def read_tokens(path: str) -> TokenFile:
    """What the file at `path` has.

    Raises ConfigInvalid for a file that cannot be read, has no token, or has a line that is not a token.
    """
    tokens = []
    content, is_public = _read(path)
    for number, line in enumerate(content.splitlines(), 1):
        token = line.strip()
        if not token or token.startswith(b"#"):
            continue
        if not _TOKEN.fullmatch(token):
            raise _unusable(path, f"line {number} has characters that no bearer token may have")
        if len(token) < SHORTEST:
            raise _unusable(path, f"the token in line {number} has less than {SHORTEST} characters")
        tokens.append(digest_of(token))
    if not tokens:
        raise _unusable(path, "it has no token")
    if len(tokens) > MOST_TOKENS:
        raise _unusable(path, f"it has {len(tokens)} tokens, and {MOST_TOKENS} are possible")
    return TokenFile(tuple(tokens), is_public)


def digest_of(token: bytes) -> bytes:
    """What stands for a token in memory; digests have one length, which tells nothing about the token's."""
    return sha256(token).digest()


DIGEST_SIZE = sha256().digest_size


def _read(path: str) -> tuple[bytes, bool]:
    try:
        # Not to wait for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise _unusable(path, "it is not a file")
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if len(content) > _MOST_BYTES:
        raise _unusable(path, f"it has more than {_MOST_BYTES} bytes")
    return content, bool(state.st_mode & stat.S_IROTH)


def _unusable(path: str, why: str) -> ConfigInvalid:
    return ConfigInvalid(f"the token file '{path}' cannot be used: {why}", hint=_HINT)
