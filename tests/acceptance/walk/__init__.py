"""Cases of the walk that need real workers and real histories; nothing outside is owed, so no search engine runs."""
