"""Ways in: accept, ask, control. The Python client and the command line."""
