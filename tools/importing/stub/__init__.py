"""Python models that stand in an imported folder: each is copied as its model.py, and never imported here."""
