"""Bytes to objects, one file a format."""
