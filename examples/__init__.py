"""Examples of operations, each with the outside systems it needs."""
