"""Letters sent back to be processed again, with proof of what became of each."""
