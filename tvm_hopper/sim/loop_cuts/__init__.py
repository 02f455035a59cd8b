"""Skip middle iterations of loops when only synchronisation is checked."""
