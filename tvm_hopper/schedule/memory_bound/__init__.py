"""What kernels share whose time is that of their bytes: a program of rows, and tiles in registers."""
