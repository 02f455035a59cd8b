"""What kernels share whose time is that of their bytes: programs of rows, register tiles."""
