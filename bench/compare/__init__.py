"""The comparison of two checkouts of this project, side by side in one run."""
