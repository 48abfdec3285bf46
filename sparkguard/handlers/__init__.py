"""Who decides: the handlers that come with sparkguard, one file each."""
