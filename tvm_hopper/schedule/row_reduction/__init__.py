"""Reductions of rows and what surrounds them, in one pass over memory: recognise, choose, apply."""
