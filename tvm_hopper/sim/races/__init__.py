"""Who knows of whose accesses: clocks, the shadow of memory, the order of lanes."""
