"""What a tree model answers, from the scores of its trees.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

import numpy as np

from core.backends.fil.tree_settings import TreeSettings
from core.inference.tensors import Array


def answers(scores: Array, settings: TreeSettings, width: int) -> Array:
    """The FP32 answer for each row of `scores` (rows, classes): (rows,), or (rows, classes) for probabilities.

    `width` is the number of values that the configuration gives the output: 1, or the number of classes. A binary
    classifier has one score, the probability of the second class.
    """
    if not settings.is_classifier:
        return _narrow(scores)
    if scores.shape[1] == 1:
        if not settings.predict_proba:
            above: Array = scores[:, 0] > settings.threshold
            return above.astype(np.float32)
        return _narrow(scores if width == 1 else np.concatenate([1 - scores, scores], axis=1))
    if settings.predict_proba:
        return _narrow(scores)
    # The first of the largest scores that are above 0, otherwise class 0.
    best: Array = scores.argmax(axis=1)
    best[scores.max(axis=1) <= 0] = 0
    return best.astype(np.float32)


def _narrow(scores: Array) -> Array:
    """As FP32. A dimension of 1 is left out, as in Triton."""
    narrow = np.ascontiguousarray(scores, np.float32)
    return narrow[:, 0] if narrow.shape[1] == 1 else narrow
