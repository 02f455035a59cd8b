"""Worker code: compile an artifact, measure an artifact."""
