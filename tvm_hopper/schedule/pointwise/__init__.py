"""Elementwise programs in one pass over memory: recognise, choose, apply."""
