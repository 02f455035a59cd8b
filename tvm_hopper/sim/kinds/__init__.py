"""Which CTAs of a launch do the same but for coordinates, proved on expressions."""
