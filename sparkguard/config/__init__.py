"""Settings: the model, the loader, what they resolve to, and their JSON Schema."""
