from __future__ import annotations

import pytest

from tests.unit.fake_engine import FakeEngine
from trident.core.engine.model_lookup import ModelNotAtHand, ModelsAtHand
from trident.core.errors import ModelNotFound


def test_a_known_model_is_found() -> None:
    assert ModelsAtHand(FakeEngine()).model("simple", 1).spec.version == 1


def test_an_unknown_one_is_the_engines_error() -> None:
    with pytest.raises(ModelNotFound, match="unknown model: 'nope'"):
        ModelsAtHand(FakeEngine()).model("nope")


def test_one_that_another_process_has_to_tell_is_not_at_hand() -> None:
    engine = FakeEngine()
    engine.knows_models = False
    with pytest.raises(ModelNotAtHand) as missing:
        ModelsAtHand(engine).model("simple", 3)
    assert (missing.value.name, missing.value.version) == ("simple", 3)
