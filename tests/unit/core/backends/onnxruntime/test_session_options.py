"""Session settings from model configurations."""

from __future__ import annotations

import pytest

from tests.unit.backend_serving import config_of
from trident.core.backends.cpu_budget import Spinning
from trident.core.backends.onnxruntime.session import SessionSettings, global_pool_sizes, session_settings
from trident.core.errors import ConfigInvalid


def settings(*parameters: tuple[str, str], threads: int = 0, **backend: str) -> SessionSettings:
    text = "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters)
    return session_settings(config_of(text), {k.replace("_", "-"): v for k, v in backend.items()}, threads=threads)


@pytest.mark.parametrize(
    ("level", "name"),
    [
        (0, "ORT_ENABLE_ALL"),
        (-1, "ORT_ENABLE_BASIC"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
        (3, "ORT_ENABLE_ALL"),
    ],
)
def test_the_graph_level_is_mapped(level: int, name: str) -> None:
    assert session_settings(config_of(f"optimization {{ graph {{ level: {level} }} }}"), {}).graph_level == name


def test_the_execution_mode_is_mapped() -> None:
    assert settings().execution_mode == "ORT_SEQUENTIAL"
    assert settings(("execution_mode", "1")).execution_mode == "ORT_PARALLEL"
    with pytest.raises(ConfigInvalid) as caught:
        settings(("execution_mode", "2"))
    assert caught.value.message == (
        "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 ."
    )


def test_the_thread_plan_applies_to_models_that_set_no_count() -> None:
    assert settings(threads=3).intra_op_threads == 3
    assert settings(("intra_op_thread_count", "0"), threads=3).intra_op_threads == 3
    assert settings(("intra_op_thread_count", "-1"), threads=3).intra_op_threads == 3
    assert settings(("intra_op_thread_count", "2"), threads=3).intra_op_threads == 2
    assert settings(("inter_op_thread_count", "2")).inter_op_threads == 2


def test_the_thread_plan_describes_itself() -> None:
    assert settings(threads=3).thread_plan == "3 intra-op, default inter-op"
    assert settings().thread_plan == "default intra-op, default inter-op"
    assert settings(enable_global_threadpool="1").thread_plan == "the global pool"


def test_a_session_on_the_global_pool_has_no_own_threads() -> None:
    made = settings(("intra_op_thread_count", "2"), threads=3, enable_global_threadpool="1")
    assert made.global_thread_pool
    assert (made.intra_op_threads, made.inter_op_threads) == (0, 0)


def test_settings_give_the_size_of_the_global_pool() -> None:
    assert global_pool_sizes({"intra_op_thread_count": "4", "inter_op_thread_count": "2"}) == (4, 2)
    assert global_pool_sizes({}) == (0, 0)


def test_threads_spin_only_if_allowed() -> None:
    for spinning, value in ((Spinning.NEVER, "0"), (Spinning.FREELY, "1")):
        entries = session_settings(config_of(""), {}, spinning=spinning).session_entries
        assert entries == {"session.intra_op.allow_spinning": value, "session.inter_op.allow_spinning": value}


def test_threads_that_spin_briefly_stop_in_any_version() -> None:
    entries = session_settings(config_of(""), {}, spinning=Spinning.BRIEFLY).session_entries
    assert entries == {
        "session.intra_op.allow_spinning": "1",
        "session.intra_op.spin_duration_us": "1000",
        "session.inter_op.allow_spinning": "0",
        "session.force_spinning_stop": "1",
    }


def test_a_model_may_override_spinning() -> None:
    made = settings(("session.intra_op.allow_spinning", "0"), ("session.intra_op.spin_duration_us", "20"))
    assert made.session_entries["session.intra_op.allow_spinning"] == "0"
    assert made.session_entries["session.intra_op.spin_duration_us"] == "20"


def test_memory_parameters_are_read() -> None:
    assert (settings().enable_mem_arena, settings().enable_mem_pattern) == (None, None)
    made = settings(("enable_mem_arena", "off"), ("enable_mem_pattern", "true"))
    assert (made.enable_mem_arena, made.enable_mem_pattern) == (False, True)
    with pytest.raises(ConfigInvalid, match="failed to convert 'x' to boolean"):
        settings(("enable_mem_arena", "x"))


def test_known_entries_are_passed_on_and_unknown_parameters_ignored() -> None:
    made = settings(
        ("session.use_device_allocator_for_initializers", "1"),
        ("memory.enable_memory_arena_shrinkage", "cpu:0"),
        ("session.anything_else", "1"),
    )
    assert made.session_entries["session.use_device_allocator_for_initializers"] == "1"
    assert "session.anything_else" not in made.session_entries
    assert made.run_entries == {"memory.enable_memory_arena_shrinkage": "cpu:0"}
