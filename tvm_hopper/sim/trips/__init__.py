"""Loops of which the middle may be left out where synchronisation alone is judged, and why."""
