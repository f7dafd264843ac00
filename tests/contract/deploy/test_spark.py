"""deploy/spark on a local Spark: `pip install pyspark pandas pyarrow`, which the tests do not, and Java."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.project import ROOT

sql = pytest.importorskip("pyspark.sql")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_rows_get_the_outputs_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from deploy.spark.score import scored

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        given = [(row, [row] * 16, list(range(16))) for row in range(20)]
        rows = session.createDataFrame(given, "id int, INPUT0 array<int>, INPUT1 array<int>")
        made = scored(rows, str(ROOT / "deploy/models"), "simple").collect()
    finally:
        session.stop()
    assert len(made) == 20
    for row in made:
        assert row["OUTPUT0"] == (row["id"] + np.arange(16)).tolist()
        assert row["OUTPUT1"] == (row["id"] - np.arange(16)).tolist()
