"""The v2 protocol's bodies: requests decoded, responses and documents encoded."""
