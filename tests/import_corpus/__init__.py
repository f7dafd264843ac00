"""Models of the frameworks' own exporters over their own parameters: each is imported, and asked beside the original.

`python -m tests.import_corpus [PART OF A NAME…]`, by hand and in minutes: it needs xgboost, lightgbm, catboost,
scikit-learn, pandas, skl2onnx and onnx, and skips the frameworks that are not installed. Tests run a sample.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import trident
from trident.app.cli import main

ROWS = 100
COLUMNS = 4
_NEAR = 1e-4

Answers = Callable[[Mapping[str, Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """`source` is imported with `options`. `answers` are those of the original's public functions to `rows` by input,
    in the order of the served outputs; "" names the only input. `near` is how far numbers may be apart, as a part of
    the larger of the number and its output's usual size."""

    source: Path
    rows: Mapping[str, Any]
    answers: Answers
    options: Sequence[str] = ()
    near: float = _NEAR


Writer = Callable[[Path, np.random.Generator], Case]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verdict` is `same`, `differs` (with what was imported as the same), `not compared` or `refused`."""

    name: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """A table to train with: numbers of half steps, so that thresholds are met, and labels that depend on them."""

    x: Any
    number: Any = field(repr=False)
    two: Any = field(repr=False)
    three: Any = field(repr=False)

    def label(self, name: str) -> Any:
        """What a model is fitted to: one of the fields, or made of them."""
        made = {
            "none": None,
            "names": np.array(["no", "yes", "maybe"])[self.three],
            "booleans": self.two > 0,
            "labels": np.stack([self.two, self.three > 1], axis=1).astype(int),
            "numbers": np.stack([self.number, -self.number], axis=1),
            "positive": np.abs(self.number) + 0.1,
        }
        return made[name] if name in made else getattr(self, name)


def both(second: Any) -> Any:
    """The probabilities of both classes."""
    return np.stack([1 - second, second], axis=1)


def dumped(model: Any, path: Path) -> Path:
    import joblib

    joblib.dump(model, path)
    return path


def data(random: np.random.Generator, missing: float = 0.0, sparse: bool = False) -> Data:
    x = np.round(random.normal(size=(ROWS, COLUMNS)) * 4) / 2
    if sparse:
        x[random.random(x.shape) < 0.4] = 0
    number = x[:, 0] * 2 - x[:, 1] + (x[:, 2] > 0.5) * x[:, 3] + random.normal(size=ROWS) / 10
    if missing:
        x[random.random(x.shape) < missing] = np.nan
    return Data(x.astype(np.float32), number, (number > 0).astype(int), np.digitize(number, [-2, 2]))


def rows_at(
    random: np.random.Generator,
    x: Any,
    thresholds: Sequence[tuple[int, float]],
    *,
    special: Sequence[float] = (0.0, -0.0, np.nan, np.inf, -np.inf, 1e-36, -1e-36, 1e-40, 3.4e38, -3.4e38),
    categories: Mapping[int, Sequence[float]] | None = None,
) -> Any:
    """FP32 rows of the kind of `x`: some of its own, thresholds with the numbers next to them, special numbers, and
    in the columns of `categories` these."""
    chosen = [thresholds[at] for at in random.permutation(len(thresholds))[:150]]
    features = np.array([feature for feature, _ in chosen] * 3, int)
    with np.errstate(over="ignore"):
        numbers = np.array([number for _, number in chosen], np.float32)
    near = np.concatenate(
        [np.nextafter(numbers, np.float32(-np.inf)), numbers, np.nextafter(numbers, np.float32(np.inf))]
    )
    count = len(near) + 200
    made = np.asarray(x, np.float32)[random.integers(0, len(x), count)].copy()
    width = made.shape[1]
    made[np.arange(len(near)), features] = near
    if len(special):
        odd = random.random((200, width)) < 0.3
        made[len(near) :] = np.where(odd, random.choice(np.array(special, np.float32), (200, width)), made[len(near) :])
    for column, values in (categories or {}).items():
        made[:, column] = random.choice(np.array(values, np.float32), count)
    return made


def run(name: str, write: Writer, folder: Path) -> Outcome:
    """Import the model of a case, and ask it and the original."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    case = write(folder, random)
    models = folder / "models"
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        status = main(
            ["import", str(case.source), "--name=made", f"--repository={models}", "--trust-pickle", *case.options]
        )
    text = shown.getvalue()
    if status:
        left = [each.name for each in models.iterdir()] if models.exists() else []
        reason = re.search(r"^(?:trident: )?error: .*(?:\n  hint: .*)?", text, re.MULTILINE)
        assert reason, text
        if left:
            return Outcome(name, "differs", f"a model that was refused is there: {left}")
        # A difference that the import finds is shown beside those that it misses: it does not help a person either.
        return Outcome(name, "found" if "answers otherwise" in text else "refused", reason[0])
    if reason := re.search(r"^it is not (?:compared|run).*(?:\n  hint: .*)?", text, re.MULTILINE):
        return Outcome(name, "not compared", reason[0])
    same = re.search(r"^the original, .* answers the same .*", text, re.MULTILINE)
    assert same, text
    with trident.Server(str(models)) as server:
        model = server.model("made")
        config = model.config()
        (first, *_) = [each["name"] for each in config["input"]]
        kept, originals = answered(case, {key or first: value for key, value in case.rows.items()})
        if not originals:
            return Outcome(name, "not compared", "the original refuses all rows")
        rows = {key or first: value[kept] for key, value in case.rows.items()}
        count = len(next(iter(rows.values())))
        step = config.get("max_batch_size") or count
        parts = []
        for start in range(0, count, step):
            answer = model.infer({key: value[start : start + step] for key, value in rows.items()})
            parts.append([np.asarray(answer[each["name"]]) for each in config["output"]])
    served = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    for number, (ours, original) in enumerate(zip(served, originals, strict=False)):
        if wrong := differing(ours, np.asarray(original), case.near):
            return Outcome(name, "differs", f"output {number}: {wrong}")
    return Outcome(name, "same", same[0])


def answered(case: Case, rows: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """The rows that the original takes, and its answers: without infinities, or NaN too, where it refuses them."""
    numbers = [np.asarray(each, float) for each in rows.values() if each.dtype.kind == "f"]
    everything = np.full(len(next(iter(rows.values()))), True)
    bounded = [~np.isinf(each).reshape(len(each), -1).any(1) for each in numbers]
    finite = [np.isfinite(each).reshape(len(each), -1).all(1) for each in numbers]
    for kept in (everything, np.all([everything, *bounded], 0), np.all([everything, *finite], 0)):
        with suppress(Exception):  # an original raises what it wants
            return kept, case.answers({name: value[kept] for name, value in rows.items()})
    return everything, ()


def differing(ours: Any, original: Any, near: float) -> str:
    """Rows in which a served output differs, or ""."""
    if ours.size != original.size:
        return f"it has the shape {ours.shape}, and the original's {original.shape}"
    original = original.reshape(ours.shape)
    if ours.dtype.kind in "OSU" or original.dtype.kind in "OSU":
        mine = np.array([each.decode() if isinstance(each, bytes) else str(each) for each in ours.ravel()], object)
        wrong = np.flatnonzero(mine != original.ravel().astype(str).astype(object))
        mine, theirs = mine, original.ravel()
    else:
        mine, theirs = ours.astype(float).ravel(), original.astype(float).ravel()
        usual = np.abs(theirs[np.isfinite(theirs)])
        scale = float(np.median(usual)) if usual.size else 1.0
        with np.errstate(invalid="ignore"):
            is_same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
            is_same |= np.abs(mine - theirs) <= near * np.maximum(np.abs(theirs), max(scale, 1e-6))
        wrong = np.flatnonzero(~is_same)
    if not len(wrong):
        return ""
    at = wrong[0]
    row = at // max(1, math.prod(ours.shape[1:]))
    return f"{len(wrong)} of {ours.size}, first in row {row}: {mine[at]!r}, and the original's {theirs[at]!r}"
