"""Letters read back: one table over every sink that holds some."""
