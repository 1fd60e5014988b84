"""Our own tables and the statements on them: the one place where job tables are read and written."""
