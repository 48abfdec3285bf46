"""What runs beside the query: the batch, the accounts, the stop, the supervisor, the state."""
