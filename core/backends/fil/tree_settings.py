"""The parameters of a tree model. Errors have the texts of Triton's FIL backend.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.backends.parameter_values import field_of, parameters_of
from core.config.schema import ModelConfig
from core.errors import BackendFailed, ConfigInvalid, ServerError, Unsupported

DEFAULT_FILES: Mapping[str, str] = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
"""The file of each model type, unless the configuration names another."""

_DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """`threads` is 0 where the thread plan decides. `allows_unknown_fields`: in XGBoost's JSON."""

    model_type: str
    is_classifier: bool
    predict_proba: bool
    threshold: float
    threads: int
    allows_unknown_fields: bool

    @classmethod
    def read(cls, config: ModelConfig) -> TreeSettings:
        """The settings of `config`. Raises a ServerError that names the parameter."""
        given = parameters_of(config)
        model_type = given.get("model_type", "xgboost")
        if model_type not in DEFAULT_FILES:
            raise Unsupported(
                f"{model_type} not recognized as a valid serialization format.",
                hint=f"set model_type to one of: {', '.join(DEFAULT_FILES)}",
                model=config.name,
                field=field_of("model_type"),
            )
        # The older name of the parameter, which configurations still have.
        name = "is_classifier" if "is_classifier" in given or "output_class" not in given else "output_class"
        if name not in given:
            raise ConfigInvalid(
                "Required parameter is_classifier not found in config",
                hint='parameters { key: "is_classifier" value { string_value: "true" } }, or "false" for a regression',
                model=config.name,
                field=field_of("is_classifier"),
            )
        return cls(
            model_type=model_type,
            is_classifier=_boolean(name, given[name], config.name),
            predict_proba=_boolean("predict_proba", given.get("predict_proba", "false"), config.name),
            threshold=_number("threshold", given.get("threshold", str(_DEFAULT_THRESHOLD)), config.name),
            threads=max(0, int(_number("cpu_nthread", given.get("cpu_nthread", "-1"), config.name))),
            allows_unknown_fields=_boolean(
                "xgboost_allow_unknown_field", given.get("xgboost_allow_unknown_field", "false"), config.name
            ),
        )


def _boolean(name: str, text: str, model: str) -> bool:
    if text not in ("true", "false"):
        raise _wrong(name, f"Expected 'true' or 'false' for parameter '{name}', got: '{text}'", model)
    return text == "true"


def _number(name: str, text: str, model: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong(name, f"Bad input for parameter {name}", model, f"'{text}' is not a number") from None


def _wrong(name: str, message: str, model: str, hint: str | None = None) -> ServerError:
    return BackendFailed(message, hint=hint, model=model, field=field_of(name))
