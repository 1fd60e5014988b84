"""The tests, sorted by what is real."""
