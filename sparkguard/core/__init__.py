"""Values and pure decisions: no Spark, no Kafka, no clock of its own."""
