from __future__ import annotations

import pytest

from app.settings.groups.response_cache import split_cache_setting
from app.settings.option import BadOption
from app.settings.option_types import BadValue
from app.settings.reading import read_settings

REPOSITORY = "--model-repository=/models"


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ([], 0),
        (["--cache-config=local,size=1048576"], 1048576),
        (["--cache-config=local,size=1", "--cache-config=local,size=2"], 2),
        (["--response-cache-byte-size=4096"], 4096),
    ],
)
def test_the_size_of_the_cache(options: list[str], size: int) -> None:
    assert read_settings([REPOSITORY, *options], {}).response_cache_bytes == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("size=10", "--cache-config option format is '<cache name>,<setting>=<value>'. Got size=10"),
        ("redis,host=a", "there is no response cache 'redis': use local,size=<bytes>"),
        ("local,room=1", "the response cache 'local' has no setting 'room': use local,size=<bytes>"),
        *(
            (
                f"local,size={value}",
                "Failed to initialize LocalCache: config didn't contain a valid 'size' field. "
                f"It takes a number of bytes. Got {value}",
            )
            for value in ("0", "-1", "1k", "1.5", "9" * 30)
        ),
    ],
)
def test_an_invalid_value_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(BadValue) as refusal:
        split_cache_setting(text)
    assert str(refusal.value) == reason


def test_the_two_forms_exclude_each_other() -> None:
    with pytest.raises(BadOption, match="Incompatible flags --response-cache-byte-size and --cache-config"):
        read_settings([REPOSITORY, "--cache-config=local,size=1", "--response-cache-byte-size=1"], {})
