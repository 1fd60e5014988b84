"""The conformance check: what a channel's sender makes of everything that an outside system may do to it."""
