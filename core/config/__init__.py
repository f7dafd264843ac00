"""Model configurations: parsed, completed, validated, and resolved into what the hot path needs."""
