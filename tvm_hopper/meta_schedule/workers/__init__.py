"""Worker processes that may crash or hang, and their queue."""
