"""Decision trees (XGBoost, LightGBM, Treelite checkpoints) by Treelite, on the instance threads.

The name is that of Triton's Forest Inference Library backend. Source: docs/spec/framework-backends.md section 6.7.
"""

EXTRA = "trees"
