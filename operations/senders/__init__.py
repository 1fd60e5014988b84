"""Ready-made senders: each maps its own client's errors to an answer."""
