"""What workers do: compile an artifact, measure one."""
