"""Loops of which the middle may be left out where synchronisation alone is checked, and why."""
