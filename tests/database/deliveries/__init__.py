"""Deliveries over real PostgreSQL and a real provider, in processes of their own: no Temporal is needed."""
