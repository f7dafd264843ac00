from __future__ import annotations

import pytest

from trident.core.http.payloads.payload import DocumentForm, document_form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("[1]", DocumentForm.BARE),
        (' {"instances": []}', DocumentForm.INSTANCES),
        ('{"parameters": {}, "instances": []}', DocumentForm.INSTANCES),
        ('{"inputs": [], "instances": []}', DocumentForm.INSTANCES),
        ('{"inputs": [{"name": "instances"}]}', DocumentForm.V2),
        ('{"inputs": {"A": [1]}}', DocumentForm.COLUMNS),
        ('{"inputs": [[1]]}', DocumentForm.COLUMNS),
        ('{"signature_name": "s", "inputs" : [ "text" ]}', DocumentForm.COLUMNS),
        ('{"parameters": {"inputs": [1]}, "inputs": [{"name": "A"}]}', DocumentForm.V2),
        ('{"inputs": []}', DocumentForm.V2),
        ('{"id": "1", "inputs": [{"name": "A"}]}', DocumentForm.V2),
        ('{"a": 1}', DocumentForm.V2),
        ("", DocumentForm.V2),
        ("1", DocumentForm.V2),
    ],
)
def test_the_form_follows_from_the_text(text: str, form: DocumentForm) -> None:
    assert document_form(text.encode()) is form
