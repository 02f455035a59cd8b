"""What the simulator assumes about the chip, tried: `python -m benchmarks.calibration`."""
