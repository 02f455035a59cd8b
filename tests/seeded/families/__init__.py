"""Families of seeded bugs beside those of the Hopper matmuls; one module each."""
