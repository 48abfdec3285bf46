"""How a letter is spelled in Kafka headers, one file a dialect."""
