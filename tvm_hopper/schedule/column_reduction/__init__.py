"""Reductions of columns, split between thread blocks: recognise, choose, apply."""
