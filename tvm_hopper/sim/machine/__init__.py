"""The machine: CTAs, warps, memory and registers as the simulator keeps them."""
