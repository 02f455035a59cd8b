"""Published bugs of other projects: kernels, and the table of them in `bugs`."""
