"""The generate extension: a flat JSON object becomes a request, and each response a flat JSON object or an event."""
