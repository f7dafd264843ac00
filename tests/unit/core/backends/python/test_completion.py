from __future__ import annotations

from pathlib import Path

import pytest

from trident.core.backends.python.backend import may_complete


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class TritonPythonModel:\n    pass\n", False),
        ("import numpy\n\n\nclass TritonPythonModel(object):\n    pass\n", False),
        ("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): ...\n", True),
        ("from base import Base\n\nclass TritonPythonModel(Base):\n    pass\n", True),
        ("from base import TritonPythonModel\n", True),
        ("# class TritonPythonModel:\n", True),
    ],
)
def test_a_process_is_started_only_for_models_that_may_have_something_to_say(
    source: str, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(source)
    assert may_complete(file) is expected
