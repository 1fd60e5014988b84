"""Benchmark of the walk: `python -m benchmarks.walk`, or `make bench-walk`."""
