//! Carries the rows of a PostgreSQL outbox to Kinesis: none skipped, each key in order.
