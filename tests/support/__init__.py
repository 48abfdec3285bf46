"""Real parts for the tests: a Kafka broker, a Spark session, and the jars of both."""
