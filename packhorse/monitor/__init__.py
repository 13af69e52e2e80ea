"""What the command line, the API and the pages share about jobs, queues, workers and the storage."""
