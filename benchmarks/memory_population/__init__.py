"""Memory-bound programs as users have them: `python -m benchmarks.memory_population SEED COUNT`."""
