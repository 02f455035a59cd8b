"""Processes that may crash or hang, and the queue in front of them."""
