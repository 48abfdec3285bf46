"""What a user can guard, one file a kind. A stage is a description; it knows no settings."""
