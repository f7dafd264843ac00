"""Golden requests: requests with the responses that a model must give."""
