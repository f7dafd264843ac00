from __future__ import annotations

from trident.app.settings.groups import MetricsSettings, split_metrics_settings


def test_the_last_of_several_metrics_settings_of_one_name_counts() -> None:
    assert split_metrics_settings(["a=1", "b=2:3", "a=4"]) == {"a": "4", "b": "2:3"}


def test_the_group_gives_its_metrics_settings_by_name() -> None:
    assert MetricsSettings(metrics_config=("a=1=2",)).metrics_settings == {"a": "1=2"}
