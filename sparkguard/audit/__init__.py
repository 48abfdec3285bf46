"""Whether every record that went in is where the ledger says."""
