"""The error messages of calls to S3."""

from __future__ import annotations

from trident.core.repository.stores.s3 import S3Call, safe_text

READ = S3Call("s3:GetObject", "s3://b/models/m/1/model.onnx", "b", "models/m/1/model.onnx")


def test_refusal_names_identity_call_and_permission() -> None:
    error = READ.refused("access key …MPLE from env", "AccessDenied", "Access Denied")
    assert error.message == (
        "s3:GetObject on s3://b/models/m/1/model.onnx as access key …MPLE from env failed. "
        "Exception: 'AccessDenied' Message: 'Access Denied'; "
        "it needs the permission s3:GetObject on arn:aws:s3:::b/models/m/1/model.onnx"
    )
    assert error.hint is not None
    assert "arn:aws:s3:::b/models/m/1/model.onnx" in error.hint


def test_failed_first_listing_begins_with_the_text_of_triton() -> None:
    error = S3Call("s3:ListBucket", "s3://b/models", "b", opening=True).refused("anonymous", "X", "Y")
    assert error.message.startswith(
        "Unable to create S3 filesystem client. Check account credentials. Exception: 'X' Message: 'Y' (s3:ListBucket"
    )
    assert error.message.endswith("s3:ListBucket on arn:aws:s3:::b")


def test_message_stays_on_one_line_whatever_the_key() -> None:
    call = S3Call("s3:GetObject", "s3://b/a\nERROR all is lost", "b", "a\nERROR all is lost")
    for error in (call.refused("anonymous", "X", "Y"), call.failed("anonymous", "X", "Y"), call.gone("removed")):
        assert "\n" not in f"{error.message}{error.hint}"


def test_safe_text_hides_secrets_and_control_characters() -> None:
    assert safe_text("the key hunter2\r\nis\x00 wrong", ("hunter2", "")) == "the key [secret] is  wrong"
    assert len(safe_text("x" * 10_000, ())) == 500
