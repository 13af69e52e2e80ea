"""What the command line, the API and the pages all say about jobs, queues, workers and the storage."""
