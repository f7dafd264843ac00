from __future__ import annotations

import pytest

from trident.core.errors import Unsupported
from trident.core.frontend.admin import refuse_repository


def test_a_call_that_names_a_repository_is_refused() -> None:
    refuse_repository("")
    with pytest.raises(Unsupported, match="'repository_name' specification is not supported"):
        refuse_repository("r")
