"""The operations of the README, and how to run them on one machine."""
