"""What tests share: servers, databases, waiting."""
