"""Launches: the host function, its arguments, tensors and tensor maps."""
