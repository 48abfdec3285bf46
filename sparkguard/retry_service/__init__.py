"""Records that wait until they are due, and are sent back then."""
