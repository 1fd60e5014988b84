"""The bodies of the declared activities. Thin: contract in, database and operations, contract out."""
