"""A job owns its data, at any instant: through kills, freezes, resets, terminations, clock skew, a pooler."""
