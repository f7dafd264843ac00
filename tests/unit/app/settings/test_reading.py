from __future__ import annotations

import pytest

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import read_settings, with_repositories
from trident.app.settings.server import ServerSettings

REPOSITORY = "--model-repository=/models"


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings([REPOSITORY, *arguments], environ)


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDENT_ID", "from the process")
    assert read_settings([REPOSITORY]).server_id == "from the process"


def test_a_misspelled_variable_ends_the_start() -> None:
    with pytest.raises(BadOption, match="did you mean TRIDENT_HTTP_PORT"):
        settings(TRIDENT_HTP_PORT="1")


def test_options_without_effect_are_kept_for_the_log() -> None:
    assert settings("--cache-directory=/x", "--grpc-infer-allocation-pool-size=9").without_effect == (
        "--cache-directory",
        "--grpc-infer-allocation-pool-size",
    )


def test_metrics_settings_are_read_by_their_names() -> None:
    found = settings("--metrics-config=counter_latencies=false", "--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01")
    assert found.metrics_settings == {"counter_latencies": "false", "summary_quantiles": "0.5:0.05,0.9:0.01"}
    found = settings(TRIDENT_METRICS_CONFIG="summary_latencies=true;histogram_latencies=false")
    assert found.metrics_settings == {"summary_latencies": "true", "histogram_latencies": "false"}
    assert found.without_effect == ()
    with pytest.raises(BadOption, match="--metrics-config option format is"):
        settings("--metrics-config=counter_latencies")


def test_words_are_repositories_beside_options_of_every_kind() -> None:
    arguments = ["/models", "--http-port", "9", "--buffer-manager-thread-count=2", "s3://bucket"]
    assert with_repositories(arguments) == [
        "--http-port=9",
        "--buffer-manager-thread-count=2",
        "--model-repository=/models",
        "--model-repository=s3://bucket",
    ]


def test_a_repository_may_be_left_out_where_it_is_not_needed() -> None:
    assert read_settings(["--http-port=1"], {}, needs_repository=False).model_repository == ()
    with pytest.raises(BadOption, match="--model-repository must be specified"):
        read_settings(["--http-port=1"], {})
