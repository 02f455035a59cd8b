"""TMA, bulk copies, cp.async and DMA: a plan and the emitted instructions of each (table.py)."""
