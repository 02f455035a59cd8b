"""A matmul from plain loops: recognise, normalise, choose, schedule."""
