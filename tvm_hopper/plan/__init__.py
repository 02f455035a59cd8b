"""Plans: frozen decisions that passes carry out; making one raises every refusal."""
