"""What runs inside Python workers: the pass, the attempt, the delivery, the tally."""
