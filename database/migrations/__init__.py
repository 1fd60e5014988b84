"""Alembic's environment and revisions: forward only."""
