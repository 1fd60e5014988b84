"""Effects under faults, over real providers."""
