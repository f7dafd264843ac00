"""The response cache: what a request's answer depends on, and answers that are kept in memory."""
