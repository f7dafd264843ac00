from __future__ import annotations

import pytest

from trident.core.backends.python.settings import ModelLimits
from trident.core.errors import ConfigInvalid


def test_a_model_has_no_limits_unless_it_sets_them() -> None:
    assert ModelLimits.read({"EXECUTION_ENV_PATH": "/env"}) == ModelLimits(None, None)
    both = {"EXECUTION_LIMIT_SECONDS": "2.5", "MEMORY_LIMIT_BYTES": "1000000"}
    assert ModelLimits.read(both) == ModelLimits(2.5, 1_000_000)


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "nan", "inf"])
@pytest.mark.parametrize("name", ["EXECUTION_LIMIT_SECONDS", "MEMORY_LIMIT_BYTES"])
def test_a_limit_is_a_number_above_zero(name: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"parameter '{name}' must be a number above 0, not '{text}'"):
        ModelLimits.read({name: text})
