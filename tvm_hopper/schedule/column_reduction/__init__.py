"""Column reductions, split over thread blocks: recognise, choose, apply."""
