"""Signed models: the files of a model are those that one key has signed, or nothing of them is read.

The signature is that of OpenSSF model signing 1.0, by an elliptic curve key, in the file `model.sig` of the model's
folder. It is checked here, with the package cryptography alone, and strictly: of the formats that `model_signing`
reads, this reads the one that it writes by default.
Source: docs/spec/repository.md section 1.11.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from trident.core.config.problem import open_file, read_file
from trident.core.errors import ConfigInvalid, ModelLoadFailed
from trident.core.repository.repository import version_of
from trident.core.repository.sources import Fetched, Source, SourceFile

SIGNATURE_FILE = "model.sig"
_LARGEST = 64 << 20
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
# By the names that signatures give them.
_DIGESTS = ("sha256", "blake2b")
# The hash that a signature is made of, by the curve of its key.
_CURVES: Mapping[str, hashes.HashAlgorithm] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
# The signing program omits these; nothing here reads them.
_OF_GIT = (".git", ".gitattributes", ".github", ".gitignore")


class SigningKey:
    """The public key whose signature every model must have; any thread."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigInvalid if the file is not the public key of a P-256, P-384 or P-521 curve in PEM."""
        try:
            key = serialization.load_pem_public_key(_read_key(path))
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
            raise ConfigInvalid(
                f"{path} is not the public key of a curve P-256, P-384 or P-521 in PEM",
                hint="openssl ec -in private.pem -pubout -out public.pem writes it",
            )
        self._key = key

    def signed_files(self, content: bytes) -> dict[str, tuple[str, str]]:
        """Return the algorithm and the digest in hex of each path in a signature. Raises BadSignature."""
        try:
            bundle = json.loads(content)
            envelope = bundle["dsseEnvelope"]
            payload = base64.b64decode(envelope["payload"], validate=True)
            (only,) = envelope["signatures"]
            signature = base64.b64decode(only["sig"], validate=True)
            kind = str(envelope["payloadType"])
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
            raise BadSignature("is not a signature of OpenSSF model signing") from None
        try:
            self._key.verify(signature, _encoded(kind, payload), ec.ECDSA(_CURVES[self._key.curve.name]))
        except InvalidSignature:
            raise BadSignature("was not made with the key of --model-signature, or was changed") from None
        if kind != _PAYLOAD_TYPE:
            raise BadSignature(f"signs a document of the type {kind}, not {_PAYLOAD_TYPE}")
        try:
            statement = json.loads(payload)
            if statement["_type"] != _STATEMENT or statement["predicateType"] != _PREDICATE:
                raise BadSignature(f"has another form than {_PREDICATE}")
            predicate = statement["predicate"]
            if predicate["serialization"]["method"] != "files":
                raise BadSignature(f"lists {predicate['serialization']['method']}: sign whole files, as is the default")
            found: dict[str, tuple[str, str]] = {}
            for each in predicate["resources"]:
                name, algorithm = str(each["name"]), str(each["algorithm"])
                if algorithm not in _DIGESTS:
                    raise BadSignature(f"has digests of {algorithm}: sign with {' or '.join(_DIGESTS)}")
                if name in found:
                    raise BadSignature(f"lists {name} twice")
                found[name] = (algorithm, str(each["digest"]))
            return found
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadSignature("has no list of files") from None


def sign_model(folder: Path, path: Path) -> None:
    """Sign the files of a model with the private key in the file `path`, as `model_signing sign key` does.

    Raises ConfigInvalid for another kind of key, or for files that cannot be signed.
    """
    try:
        key = serialization.load_pem_private_key(_read_key(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in _CURVES:
        raise ConfigInvalid(
            f"{path} is not the private key of a curve P-256, P-384 or P-521 in PEM without a password",
            hint="openssl ecparam -name prime256v1 -genkey -noout -out private.pem makes one",
        )
    if links := sorted(each for each in folder.rglob("*") if each.is_symlink()):
        raise ConfigInvalid(f"a model with links cannot be signed: {links[0]}", hint="copy its files")
    files = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*") if each.is_file()}
    digests = {name: _digest(files[name], "sha256") for name in sorted(files) if _is_signed(name)}
    root = hashlib.sha256(b"".join(map(bytes.fromhex, digests.values()))).hexdigest()
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": folder.name, "digest": {"sha256": root}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [*_OF_GIT, SIGNATURE_FILE],
            },
            "resources": [{"name": name, "algorithm": "sha256", "digest": each} for name, each in digests.items()],
        },
    }
    payload = json.dumps(statement, indent=2).encode()
    signature = key.sign(_encoded(_PAYLOAD_TYPE, payload), ec.ECDSA(_CURVES[key.curve.name]))
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    bundle = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hashlib.sha256(public).hexdigest()}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    (folder / SIGNATURE_FILE).write_text(json.dumps(bundle))


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(f"the key of signatures cannot be read: {error.strerror}: {path}") from error


def _encoded(kind: str, payload: bytes) -> bytes:
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


class BadSignature(Exception):
    """A signature is wrong; the argument continues a sentence that begins with its file's name."""


class SignedSource:
    """The Source `inner`, of which no model comes to the disk that `key` has not signed as it is.

    Before anything else of the model is read, its signature, the list of its files, and the content of those that are
    on the disk are checked, each time that it is fetched: what was changed in a cache is refused as well.
    """

    def __init__(self, inner: Source, key: SigningKey) -> None:
        self.location = inner.location
        self._inner = inner
        self._key = key
        self._listed: dict[str, frozenset[str]] = {}

    def models(self) -> Sequence[str]:
        return self._inner.models()

    def check_exists(self) -> None:
        self._inner.check_exists()

    def scan(self) -> Mapping[str, Sequence[SourceFile]]:
        found = self._inner.scan()
        self._listed = {model: _paths(files) for model, files in found.items()}
        return found

    def files(self, model: str) -> Sequence[SourceFile] | None:
        files = self._inner.files(model)
        if files is not None:
            self._listed[model] = _paths(files)
        return files

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        """Also raises ModelLoadFailed, which says what is not as it was signed."""
        listed = self._listed.get(model, frozenset()) | _paths(files)
        if SIGNATURE_FILE not in listed:
            raise _refused(model, f"has no {SIGNATURE_FILE}")
        # What is called for to read a configuration alone is checked with its signature, too.
        wanted = {each.path: each for each in files}
        if SIGNATURE_FILE not in wanted:
            files = [*files, *(each for each in self._inner.files(model) or () if each.path == SIGNATURE_FILE)]
        fetched = self._inner.fetch(model, files, version)
        try:
            self._check(model, fetched.directory.path, listed, version)
        except BaseException:
            fetched.release()
            raise
        return fetched

    def _check(self, model: str, folder: Path, listed: frozenset[str], version: int | None) -> None:
        try:
            signed = self._key.signed_files(read_file(folder / SIGNATURE_FILE, _LARGEST))
            present = dict(_walk(folder, version))
            # Folders that are empty have no content that could be signed.
            paths = {path for path in listed | present.keys() if not path.endswith("/") and _is_signed(path)}
            if extra := sorted(paths - signed.keys()):
                raise BadSignature(f"does not have {_some(extra)}")
            if lost := sorted(signed.keys() - listed - present.keys()):
                raise BadSignature(f"has {_some(lost)}, which the model lacks")
            for path, file_path in present.items():
                if _is_signed(path) and _digest(file_path, signed[path][0]) != signed[path][1]:
                    raise _refused(model, f"has another {path} than was signed")
        except OSError as error:
            raise _refused(model, f"cannot be checked: {error.strerror}: {error.filename}") from error
        except BadSignature as error:
            raise _refused(model, f"cannot be trusted: {SIGNATURE_FILE} {error}") from None


def _paths(files: Sequence[SourceFile]) -> frozenset[str]:
    return frozenset(each.path for each in files)


def _is_signed(path: str) -> bool:
    return path != SIGNATURE_FILE and path.partition("/")[0] not in _OF_GIT


def _walk(folder: Path, version: int | None) -> Iterator[tuple[str, Path]]:
    """Yield the files on the disk by path, links followed, but for those of other versions.

    Raises OSError, and BadSignature for a folder that is there twice.
    """
    entered: set[tuple[int, int]] = set()
    for above, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        status = os.stat(above)
        if (status.st_dev, status.st_ino) in entered:
            raise BadSignature(f"cannot list {Path(above).relative_to(folder)}, which links to another folder in it")
        entered.add((status.st_dev, status.st_ino))
        for name in names:
            path = Path(above, name)
            relative = path.relative_to(folder).as_posix()
            if version_of(relative) in (None, version):
                yield relative, path
        if Path(above) == folder:
            folders[:] = [name for name in folders if version_of(f"{name}/") in (None, version)]


def _raise(error: OSError) -> NoReturn:
    raise error


def _digest(path: Path, algorithm: str) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more files" if len(paths) > 3 else "")


def _refused(model: str, why: str) -> ModelLoadFailed:
    return ModelLoadFailed(
        f"model '{model}' {why}",
        hint="--model-signature serves what its key has signed: trident import --sign=KEY, or model_signing sign key",
        model=model,
    )
