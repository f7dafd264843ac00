"""The folders of a repository that can be models, by their names."""

from __future__ import annotations

import pytest

from trident.core.repository.sources import UsableNames


def test_folders_of_other_programs_are_passed_over_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trident.repository")
    names = UsableNames("/models", lambda name: None)
    for _ in range(2):
        assert names.of(["simple", "lost+found", ".git", "__pycache__", "a.b"]) == ["a.b", "simple"]
    assert caplog.messages == [
        "ignore '.git', '__pycache__', 'lost+found' in /models: models do not have such names",
    ]


def test_name_with_a_problem_is_logged_again_after_it_has_disappeared(caplog: pytest.LogCaptureFixture) -> None:
    names = UsableNames("/models", lambda name: "it is long" if len(name) > 3 else None)
    for listed in (["long", "a"], ["long", "a"], ["a"], ["a", "long"]):
        assert names.of(listed) == ["a"]
    assert caplog.messages == ["ignore model 'long' in /models: it is long"] * 2
