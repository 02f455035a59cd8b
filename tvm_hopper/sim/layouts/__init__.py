"""Shared-memory layouts by the PTX manual, independent of `facts`."""
