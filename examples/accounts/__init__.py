"""The operation of the README."""
