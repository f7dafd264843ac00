"""The checks of names and urls in a multi-model load."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.adapters.sagemaker.multi_model import LONGEST_NAME, check_name, check_url, folder_of
from trident.core.errors import InvalidRequest

ROOT = "/opt/ml/models"


@pytest.mark.parametrize("name", ["a1b2c3", "with-hyphens", "v1.2_x", "..x", "größe", "x" * LONGEST_NAME])
def test_valid_folder_names_are_accepted(name: str) -> None:
    check_name(name)
    check_url(f"{ROOT}/{name}/model", ROOT)


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "/etc", "a\0b", "x" * (LONGEST_NAME + 1), "ß" * 128, "\ud800"]
)
def test_invalid_folder_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid model_name '") as caught:
        check_name(name)
    caught.value.message.encode()  # the text can be sent
    with pytest.raises(InvalidRequest, match=r"^invalid url '"):
        check_url(f"{ROOT}/{name}/model", ROOT)


@pytest.mark.parametrize("rest", ["model", "model/", "model/sub", "model/sub/"])
def test_urls_below_the_root_are_accepted(rest: str) -> None:
    check_url(f"{ROOT}/hash/{rest}", ROOT)
    check_url(f"{ROOT}/hash/{rest}", f"{ROOT}/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "model",
        ROOT,
        f"{ROOT}/",
        f"{ROOT}/hash",
        f"{ROOT}/hash/other",
        f"{ROOT}/hash/model/a/b",
        f"{ROOT}/hash//model",
        f"{ROOT}/../../etc/model",
        f"{ROOT}/hash/model/..",
        f"{ROOT}/./model",
        f"{ROOT}2/hash/model",
        "/dev/shm/model",
        "/opt/ml/model/hash/model",
        f"s3:/{ROOT}/hash/model",
        "x" * 100_000,
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=f"it must be {ROOT}/<name>/model$") as caught:
        check_url(url, ROOT)
    assert len(caught.value.message) < 1000


def test_a_url_gives_its_folder(tmp_path: Path) -> None:
    (tmp_path / "hash" / "model" / "sub").mkdir(parents=True)
    assert folder_of(f"{tmp_path}/hash/model", str(tmp_path)) == tmp_path / "hash" / "model"
    assert folder_of(f"{tmp_path}/hash/model/sub/", str(tmp_path)) == tmp_path / "hash" / "model" / "sub"


def test_links_inside_the_root_are_followed(tmp_path: Path) -> None:
    (tmp_path / "disk" / "abc" / "model").mkdir(parents=True)
    root = tmp_path / "models"
    root.symlink_to(tmp_path / "disk")
    (root / "other").symlink_to("abc")
    assert folder_of(f"{root}/other/model", str(root)) == tmp_path / "disk" / "abc" / "model"


@pytest.mark.parametrize("target", ["/dev", "/proc/self", "/sys", "/", "../outside"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    root = tmp_path / "models"
    (tmp_path / "outside").mkdir()
    (root / "hash").mkdir(parents=True)
    (root / "hash" / "model").symlink_to(target if target.startswith("/") else tmp_path / "outside")
    with pytest.raises(InvalidRequest, match="leads out of"):
        folder_of(f"{root}/hash/model", str(root))


def test_a_url_without_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hash").mkdir()
    url = f"{tmp_path}/hash/model"
    with pytest.raises(InvalidRequest, match=r"^there is no folder '"):
        folder_of(url, str(tmp_path))
    (tmp_path / "hash" / "model").write_text("a file")
    with pytest.raises(InvalidRequest, match=r"is not a folder$"):
        folder_of(url, str(tmp_path))
    (tmp_path / "hash" / "model").unlink()
    (tmp_path / "hash" / "model").symlink_to("model")
    with pytest.raises(InvalidRequest, match=r"^cannot read '"):
        folder_of(url, str(tmp_path))
