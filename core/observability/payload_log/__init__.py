"""The payload log: requests and their responses, for those who look at a model's traffic later or replay it.

Source: docs/payload-log.md, docs/spec/trace-and-log.md "In Trident".
"""
