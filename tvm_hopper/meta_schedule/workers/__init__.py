"""Processes that may crash or hang, and the queue before them."""
