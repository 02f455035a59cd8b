"""Schedule matmuls: recognise, normalise, choose, apply."""
