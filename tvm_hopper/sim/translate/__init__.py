"""A device function becomes a Python program that runs once a warp."""
