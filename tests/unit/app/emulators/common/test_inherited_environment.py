from __future__ import annotations

from trident.app.emulators.container import inherited_environment


def test_settings_of_servers_and_platforms_are_not_inherited() -> None:
    given = {"PATH": "/bin", "TRIDENT_HTTP_PORT": "1", "SAGEMAKER_BATCH": "true", "AIP_MODE": "x", "MY_AIP_KEY": "y"}
    assert inherited_environment(given) == {"PATH": "/bin", "MY_AIP_KEY": "y"}
