"""The graph of an ensemble: its steps, the tensors between them, and what must fit for it to serve."""
