"""The servers under measurement, and the loops without a server that bound them."""
