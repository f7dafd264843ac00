"""Signed models, in a folder and in an object store. The judge of a signature is model_signing itself."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import trident
from tests.contract.servers.ports import free_ports
from tests.needed import package
from tests.unit.core.repository.memory_store import MemoryStore, downloader
from trident.app.cli import main
from trident.core.errors import ConfigInvalid, InvalidRequest, ModelLoadFailed
from trident.core.repository.cloud_sources import ObjectStoreSource
from trident.core.repository.layouts import DEFAULT_NAME
from trident.core.repository.opener import SourceOpener, SourceOptions
from trident.core.repository.signature import SIGNATURE_FILE, SignedSource, SigningKey, sign_model
from trident.core.repository.sources import LocalSource


def write_keys(folder: Path, curve: ec.EllipticCurve) -> tuple[Path, Path]:
    """A private and a public key in PEM."""
    folder.mkdir()
    key = ec.generate_private_key(curve)
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "private.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)
    return folder / "private.pem", folder / "public.pem"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path / "keys", ec.SECP256R1())


@pytest.fixture
def model(tmp_path: Path, shipped_models: Path, keys: tuple[Path, Path]) -> Path:
    """A signed model with two versions, in a repository of its own."""
    folder = tmp_path / "models" / "simple"
    shutil.copytree(shipped_models / "simple", folder)
    shutil.copytree(folder / "1", folder / "2")
    sign_model(folder, keys[0])
    return folder


def local(model: Path, key: Path) -> SignedSource:
    return SignedSource(LocalSource(model.parent), SigningKey(key))


def stored(model: Path, key: Path) -> SignedSource:
    """The same files in an object store, with the cache in the folder `cache` beside the repository."""
    files = [each for each in model.rglob("*") if each.is_file()]
    store = MemoryStore({each.relative_to(model.parent).as_posix(): each.read_bytes() for each in files})
    return SignedSource(ObjectStoreSource(store, downloader(model.parent.parent / "cache")), SigningKey(key))


def fetch(source: SignedSource, version: int | None = None) -> Path:
    """Where the model is on the disk; it is released at once. Raises ModelLoadFailed."""
    fetched = source.fetch("simple", source.files("simple") or (), version)
    fetched.release()
    return fetched.directory.path


@pytest.mark.parametrize("place", [local, stored])
@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_model_signing_and_this_server_accept_the_same_signatures(
    model: Path, tmp_path: Path, curve: ec.EllipticCurve, place: Callable[[Path, Path], SignedSource]
) -> None:
    package("model_signing")
    from model_signing import hashing, signing, verifying

    private, public = write_keys(tmp_path / "others", curve)
    sign_model(model, private)
    signature = model / SIGNATURE_FILE
    verifying.Config().use_elliptic_key_verifier(public_key=public).verify(model, signature)
    for algorithm in ("sha256", "blake2"):
        hashed = hashing.Config().use_file_serialization(hashing_algorithm=algorithm)
        hashed.set_ignored_paths(paths=[signature.relative_to(model)])
        signature.unlink()
        config = signing.Config().use_elliptic_key_signer(private_key=private).set_hashing_config(hashed)
        config.sign(model, signature)
        for version in (None, 1, 2):
            fetch(place(model, public), version)


def tamper(model: Path) -> None:
    file = model / "1" / "model.onnx"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


def edit_signature(model: Path) -> None:
    """Change one byte of the signed content in an otherwise valid signature."""
    bundle = json.loads((model / SIGNATURE_FILE).read_text())
    payload = bundle["dsseEnvelope"]["payload"]
    bundle["dsseEnvelope"]["payload"] = payload[:40] + ("A" if payload[40] != "A" else "B") + payload[41:]
    (model / SIGNATURE_FILE).write_text(json.dumps(bundle))


def add(path: str) -> Callable[[Path], object]:
    def write(model: Path) -> None:
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_bytes(b"code")

    return write


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (tamper, "has another 1/model.onnx than was signed"),
    "the configuration": (lambda model: (model / "config.pbtxt").write_text("{"), "another config.pbtxt"),
    "no signature": (lambda model: (model / SIGNATURE_FILE).unlink(), "has no model.sig"),
    "a file more": (add("1/helper.py"), "does not have 1/helper.py"),
    "a file of another version": (add("3/model.onnx"), "does not have 3/model.onnx"),
    "compiled code": (add("1/__pycache__/model.cpython-311.pyc"), "does not have 1/__pycache__/model.cpython-311.pyc"),
    "a version less": (lambda model: shutil.rmtree(model / "2"), "has 2/model.onnx, which the model lacks"),
    "the signature": (edit_signature, "was not made with the key of --model-signature, or was changed"),
    "another text": (lambda model: (model / SIGNATURE_FILE).write_text("[]"), "is not a signature of OpenSSF"),
    "an empty signature": (lambda model: (model / SIGNATURE_FILE).write_bytes(b""), "is not a signature of OpenSSF"),
    "a deep text": (lambda model: (model / SIGNATURE_FILE).write_text("[" * 100_000), "is not a signature of OpenSSF"),
}


@pytest.mark.parametrize("place", [local, stored])
@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
def test_a_model_that_is_not_as_signed_is_refused(
    model: Path,
    keys: tuple[Path, Path],
    change: Callable[[Path], object],
    reason: str,
    place: Callable[[Path, Path], SignedSource],
) -> None:
    change(model)
    with pytest.raises(ModelLoadFailed, match=reason):
        fetch(place(model, keys[1]), 1)


@pytest.mark.parametrize("place", [local, stored])
def test_a_model_that_another_key_signed_is_refused(
    model: Path, tmp_path: Path, place: Callable[[Path, Path], SignedSource]
) -> None:
    _, other = write_keys(tmp_path / "others", ec.SECP256R1())
    with pytest.raises(ModelLoadFailed, match="was not made with the key of --model-signature"):
        fetch(place(model, other))


def test_changed_cache_content_is_refused(model: Path, keys: tuple[Path, Path]) -> None:
    source = stored(model, keys[1])
    graph = fetch(source, 1) / "1" / "model.onnx"
    assert fetch(source, 1) / "1" / "model.onnx" == graph
    changed_ns = graph.stat().st_mtime_ns
    graph.chmod(0o600)
    graph.write_bytes(b"x" * graph.stat().st_size)
    os.utime(graph, ns=(changed_ns, changed_ns))  # otherwise the cache sees it, and fetches it again
    with pytest.raises(ModelLoadFailed, match=r"has another 1/model\.onnx than was signed"):
        fetch(source, 1)


def test_links_are_followed_once(model: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    (model / "2").rename(tmp_path / "elsewhere")
    (model / "2").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    fetch(local(model, keys[1]), 2)
    (tmp_path / "elsewhere" / "again").symlink_to(model)
    with pytest.raises(ModelLoadFailed, match="links to another folder in it"):
        fetch(local(model, keys[1]), 2)


def test_the_library_serves_signed_models_only(model: Path, keys: tuple[Path, Path]) -> None:
    with trident.Server(model.parent, model_signature=keys[1], model_control_mode="explicit") as server:
        server.load("simple")
        with pytest.raises(InvalidRequest, match="with --model-signature models are as signed"):
            server.load("simple", "{}")
        server.unload("simple")
        # Were it read before the check, this would be an error of its syntax.
        (model / "config.pbtxt").write_text("{")
        with pytest.raises(ModelLoadFailed) as caught:
            server.load("simple")
        assert "has another config.pbtxt than was signed" in f"{caught.value.message} {caught.value.hint}"


def test_single_model_signature_is_checked_before_its_name_is_read(model: Path, keys: tuple[Path, Path]) -> None:
    options = SourceOptions(cache_directory=model, cache_bytes=0, signature_key=keys[1])
    assert list(SourceOpener(options).open(str(model), any_layout=True).scan()) == ["simple"]
    (model / "config.pbtxt").write_text('name: "other"')
    source = SourceOpener(options).open(str(model), any_layout=True)
    assert list(source.scan()) == [DEFAULT_NAME]
    with pytest.raises(ModelLoadFailed, match=r"another config\.pbtxt than was signed"):
        source.fetch(DEFAULT_NAME, source.files(DEFAULT_NAME) or (), None)


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_invalid_key_aborts_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "key.pem").write_text(text)
    with pytest.raises(ConfigInvalid, match="is not the public key of a curve"):
        trident.Server(tmp_path, model_signature=tmp_path / "key.pem")
    with pytest.raises(ConfigInvalid, match="No such file"):
        trident.Server(tmp_path, model_signature=tmp_path / "none.pem")


def test_unsignable_folder_is_refused(model: Path, keys: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigInvalid, match="is not the private key"):
        sign_model(model, keys[1])
    (model / "link").symlink_to("config.pbtxt")
    with pytest.raises(ConfigInvalid, match="a model with links"):
        sign_model(model, keys[0])


def test_import_signs_the_model(model: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert main(["import", str(model / "1" / "model.onnx"), f"--repository={made}", f"--sign={keys[0]}"]) == 0
    source = SignedSource(LocalSource(made), SigningKey(keys[1]))
    for version in (None, 1):
        source.fetch("model", source.files("model") or (), version).release()


def test_doctor_reads_no_unsigned_model(
    model: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
    for expected in (0, 1):
        main(["doctor", str(model.parent), f"--model-signature={keys[1]}", *ports])
        assert ("model 'simple' has another 2/model.onnx than was signed" in capsys.readouterr().out) == bool(expected)
        (model / "2" / "model.onnx").write_bytes(b"other")
