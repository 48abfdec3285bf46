"""Where letters rest: the sinks that come with sparkguard, one file each."""
