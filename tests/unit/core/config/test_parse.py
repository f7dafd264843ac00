"""Parsing config.pbtxt and JSON overrides, the texts of their errors, and paths in a configuration."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.core.config.problem import InvalidModelConfig, path_inside
from trident.core.config.schema import decode_config, parse_config_override, parse_model_config
from trident.core.errors import ConfigInvalid


def test_mistake_gives_the_text_of_triton_and_the_position() -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        parse_model_config('\nmax_batch_size: "invalid_value"', "/repo/m/config.pbtxt")
    assert caught.value.message.startswith("failed to read text proto from /repo/m/config.pbtxt: 2:17: ")
    assert [problem.path for problem in caught.value.problems] == ["/repo/m/config.pbtxt:2:17"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("max_batchsize: 3", "did you mean 'max_batch_size'?"),
        ('input { nam: "x" }', "did you mean 'name'?"),
        ("input { data_type: TYPE_FP33 }", "did you mean 'TYPE_FP32'?"),
        (
            '{"max_batch_size": 8}',
            "write protobuf's text, not JSON or YAML: max_batch_size: 8  dims: [ 3, 4 ]  dynamic_batching { }",
        ),
    ],
)
def test_unknown_name_gives_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        parse_model_config(text, "config.pbtxt")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "content",
    [
        b"# caf\xe9\nmax_batch_size: 8",
        b'max_batch_size: 8 # caf\xe9 "\xff',
        b'name: "a # b" # \xfc\nmax_batch_size: 8',
        b"name: '\"' # \xfc\nmax_batch_size: 8 # caf\xc3\xa9",
    ],
)
def test_comment_may_have_any_encoding(content: bytes) -> None:
    assert parse_model_config(decode_config(content, "config.pbtxt"), "config.pbtxt").max_batch_size == 8


def test_a_byte_order_mark_and_exponents_are_read() -> None:
    content = b"\xef\xbb\xbfmax_batch_size: 8\r\n"
    assert parse_model_config(decode_config(content, "config.pbtxt"), "config.pbtxt").max_batch_size == 8
    text = "model_metrics { metric_control { histogram_options { buckets: [ 1, - 1.5, .5, 1e+3, 1e-01, - inf ] } } }"
    [control] = parse_model_config(text, "p").model_metrics.metric_control
    assert list(control.histogram_options.buckets) == [1, -1.5, 0.5, 1000, 0.1, float("-inf")]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'# caf\xe9\n\nname: "caf\xe9"', "3:11: byte 0xe9"),
        (b'name: "# caf\xe9"', "1:13: byte 0xe9"),
        (b'name: "\\"# \xfc"', "1:12: byte 0xfc"),
        (b"name: '# \xfc'", "1:10: byte 0xfc"),
        (b"caf\xc3\xa9\xff", "1:5: byte 0xff"),
        ("max_batch_size: 8".encode("utf-16"), "1:1: byte 0xff"),
    ],
)
def test_invalid_utf8_outside_comments_is_refused_with_its_position(content: bytes, place: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        decode_config(content, "/repo/m/config.pbtxt")
    message = f"failed to read text proto from /repo/m/config.pbtxt: {place} is not UTF-8"
    assert (caught.value.message, caught.value.hint) == (message, "save the file as UTF-8")
    (problem,) = caught.value.problems
    assert problem.path == f"/repo/m/config.pbtxt:{place.partition(': ')[0]}"


@pytest.mark.slow
def test_line_of_quotation_marks_is_scanned_in_linear_time() -> None:
    with pytest.raises(InvalidModelConfig, match="1:1: byte 0xff"):
        decode_config(b"\xff" + b"\x27\x5c\x22" * 1_000_000, "config.pbtxt")


@pytest.mark.parametrize("text", ["{bad", "[]", "3", "null", '"x"', '{"max_batch_size": 99999999999}', "[" * 5000])
def test_invalid_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"^Invalid config override: "):
        parse_config_override(text)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("dims: [ - 1, -\n 2, - # two\n 3 ]", "dims: [ -1, -2, -3 ]"),
        ("optional: 01", "optional: true"),
        ("dims: [ -01, - 0x1, -010 ]", "dims: [ -1, -1, -8 ]"),
        ("optional: 0x0", "optional: false"),
        ("dims: [ 01, 010, 0x10, 10 ]", "dims: [ 1, 8, 16, 10 ]"),
        ("name: '- 1 +8 1_0 \u00a0'  # - 1 +8 1_0 \u00a0 \\q", "name: '- 1 +8 1_0 \\302\\240'"),
        (r"name: '\a\\\'\x41\u00e9'", r"name: '\007\134\047A\303\251'"),
    ],
)
def test_tritons_configurations_are_parsed(text: str, same: str) -> None:
    assert parse_model_config(f"input {{ {text}\n }}", "p") == parse_model_config(f"input {{ {same} }}", "p")


@pytest.mark.slow
@given(st.text())
def test_any_text_parses_or_raises_invalid_model_config(text: str) -> None:
    with suppress(ConfigInvalid):
        parse_model_config(text, "config.pbtxt")
    with suppress(ConfigInvalid):
        parse_config_override(text)


# --- paths from a configuration stay inside the model directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with `real/labels.txt`, beside a file outside of it."""
    model = tmp_path / "model"
    (model / "real").mkdir(parents=True)
    (model / "real" / "labels.txt").touch()
    (tmp_path / "secret").touch()
    return model


@pytest.mark.parametrize("relative", ["real/labels.txt", "./real//labels.txt", "../model/real/labels.txt"])
def test_path_inside_is_returned(model: Path, relative: str) -> None:
    assert path_inside(model, relative) == model / relative


def test_missing_and_absolute_paths_inside_are_accepted(model: Path) -> None:
    assert path_inside(model, "none/labels.txt") == model / "none" / "labels.txt"
    assert path_inside(model, "x" * 300) == model / ("x" * 300)
    assert path_inside(model, f"{model}//real/labels.txt") == model / "real" / "labels.txt"
    assert path_inside(model, f"{model}/../secret") is None


@pytest.mark.parametrize("relative", ["../x", "/etc/passwd", "a/../../x", "a\0b", "../secret", "..", "real/../.."])
def test_path_outside_gives_none(model: Path, relative: str) -> None:
    assert path_inside(model, relative) is None


@pytest.mark.parametrize(
    "target",
    ["real", "./real/../real/", "../model/real", "ROOT/model/real", "ROOT/alias/real", "ROOT/model/../model/real"],
)
def test_link_within_the_folder_is_followed(model: Path, target: str) -> None:
    (model.parent / "alias").symlink_to("model")
    (model / "second").symlink_to(target.replace("ROOT", str(model.parent)))
    (model / "first").symlink_to("second")
    assert path_inside(model, "first/labels.txt") == model / "first" / "labels.txt"


@pytest.mark.parametrize("target", ["../secret", "ROOT/secret", "real/../../secret", "/", "..", "ROOT/alias/../secret"])
def test_link_out_of_the_folder_gives_none(model: Path, target: str) -> None:
    (model.parent / "alias").symlink_to("model")
    (model / "link").symlink_to(target.replace("ROOT", str(model.parent)))
    (model / "first").symlink_to("link")
    assert path_inside(model, "first") is None
