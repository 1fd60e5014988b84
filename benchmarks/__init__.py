"""Benchmarks: ratios of what runs side by side in one run, never absolute times."""
