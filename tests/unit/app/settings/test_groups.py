from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

import pytest

from trident.adapters.common.options import BadOption, BadValue
from trident.app.settings.groups import (
    BACKEND_SETTING,
    BackendSettings,
    LoggingSettings,
    MetricsSettings,
    resource_limit,
    split_backend_settings,
    split_cache_setting,
    split_metrics_settings,
)
from trident.app.settings.reading import read_settings
from trident.core.observability.log import LogOptions
from trident.core.response_cache.redis_options import RedisOptions
from trident.core.scheduling.resource_limit import ResourceLimit


def test_backend_settings_are_split_by_backend_and_the_last_value_counts() -> None:
    texts = ["onnxruntime,threads=1", "default-max-batch-size=8", "onnxruntime,threads=2", "python,path=a=b,c"]
    assert split_backend_settings(texts) == {
        "onnxruntime": {"threads": "2"},
        "": {"default-max-batch-size": "8"},
        "python": {"path": "a=b,c"},
    }
    settings = BackendSettings(backend_config=("onnxruntime,a=b",), backend_directory="/backends").backend_settings
    assert settings == {"": {"backend-directory": "/backends"}, "onnxruntime": {"a": "b"}}
    settings = BackendSettings(backend_config=("backend-directory=/mine",)).backend_settings
    assert settings == {"": {"backend-directory": "/mine"}}


@pytest.mark.parametrize("text", ["", "a", "a,b", ",a=b", "a,=b", "a,b=", "=b", "a="])
def test_a_malformed_backend_setting_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="--backend-config option format is"):
        BACKEND_SETTING.parse(text)


def test_the_group_gives_the_options_of_the_log() -> None:
    settings = LoggingSettings(log_verbose=1, log_info=False, log_format="json", log_file="x", log_escape=False)
    assert settings.log_options == LogOptions(verbose=1, info=False, format="json", file="x", escape=False)


def test_metrics_settings_go_by_name_and_the_last_one_counts() -> None:
    assert split_metrics_settings(["a=1", "b=2:3", "a=4"]) == {"a": "4", "b": "2:3"}
    assert MetricsSettings(metrics_config=("a=1=2",)).metrics_settings == {"a": "1=2"}


REPOSITORY = "--model-repository=/models"
ON = "--rate-limit=execution_count"
R, S = "--rate-limit-resource=R:4", "--rate-limit-resource=S:1:0"


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ([], None),
        (["--rate-limit=off", R], None),
        ([R], None),
        ([ON], ()),
        ([ON, R, S], (ResourceLimit("R", 4), ResourceLimit("S", 1, 0))),
    ],
)
def test_the_limits_of_resources(options: list[str], limits: tuple[ResourceLimit, ...] | None) -> None:
    assert read_settings([REPOSITORY, *options], {}).resource_limits == limits


@pytest.mark.parametrize("text", ["R", "R:", ":4", "R:4:", "R:4:0:1", "R:x", "R:-1", "R:4:-2", "R:99999999999"])
def test_a_limit_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        resource_limit(text)
    with pytest.raises(BadOption, match="--rate-limit-resource"):
        read_settings([REPOSITORY, f"--rate-limit-resource={text}"], {})


def test_another_mode_is_refused() -> None:
    with pytest.raises(BadOption, match="'on' is not one of execution_count, off"):
        read_settings([REPOSITORY, "--rate-limit=on"], {})


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
        ("redis,hosts", "--cache-config option format is '<cache name>,<setting>=<value>'. Got redis,..."),
        (
            "memcached,host=a",
            "there is no response cache 'memcached': use local,size=<bytes> or redis,host=<host>,port=<port>",
        ),
        (
            "redis,retries=1",
            "the response cache 'redis' has no setting 'retries': it has host, port, user, password, db, "
            "connect_timeout, socket_timeout, pool_size, lookup_timeout, wait_timeout, tls_enabled, cert, key, cacert, "
            "cacert_dir",
        ),
        (
            "redis,port=70000",
            "the setting 'port' of the response cache 'redis': Provided option value is out of bound. Got 70000",
        ),
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


def redis_options(*texts: str, environ: Mapping[str, str] | None = None) -> RedisOptions | None:
    given = [f"--cache-config={text}" for text in texts]
    return read_settings([REPOSITORY, *given], environ or {}).redis_options


@pytest.mark.parametrize(
    "texts",
    [
        ["redis,host=cache,port=6380,user=me,password=a,b=c,db=2,wait_timeout=10"],
        [
            "redis,host=other",
            "redis,host=cache",
            "redis,port=6380",
            "redis,user=me",
            "redis,password=a,b=c",
            "redis,db=2",
        ],
    ],
)
def test_redis_takes_its_settings_one_by_one_or_together(texts: list[str]) -> None:
    pytest.importorskip("redis")
    assert redis_options(*texts) == RedisOptions(host="cache", port=6380, user="me", password="a,b=c", db=2)


def test_the_user_of_redis_may_come_from_the_environment() -> None:
    pytest.importorskip("redis")
    environ = {"TRITONCACHE_REDIS_USERNAME": "me", "TRITONCACHE_REDIS_PASSWORD": "secret"}
    found = redis_options("redis,host=cache,port=1", environ=environ)
    assert found == RedisOptions(host="cache", port=1, user="me", password="secret")
    overridden = redis_options("redis,host=cache,port=1,password=other", environ=environ)
    assert overridden == RedisOptions(host="cache", port=1, user="me", password="other")


def test_a_password_is_never_shown() -> None:
    pytest.importorskip("redis")
    settings = read_settings(
        [REPOSITORY, "--cache-config=redis,host=cache,port=1,password=secret1"],
        {"TRITONCACHE_REDIS_PASSWORD": "secret2"},
    )
    shown = repr(settings) + repr(settings.describe()) + repr(settings.redis_options)
    assert "secret" not in shown.replace("redis_password", "")


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["redis,host=cache"], "Failed to initialize RedisCache, didn't specify address"),
        (["redis,port=1"], "Failed to initialize RedisCache, didn't specify address"),
        (["redis,host=cache,port=1,cacert=/nowhere.pem"], "there is no /nowhere.pem"),
        (["redis,host=cache,port=1", "local,size=1"], "found multiple cache configurations, but only a single cache"),
    ],
)
def test_settings_that_make_no_cache(texts: list[str], reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        redis_options(*texts)


def test_a_missing_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.delitem(sys.modules, "redis", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(BadOption, match=r"pip install 'trident-inference\[redis\]'"):
        redis_options("redis,host=cache,port=1")
