"""Race detection: vector clocks, shadow memory, order of lanes."""
