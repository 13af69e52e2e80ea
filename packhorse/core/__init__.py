"""Plain data and pure decisions: no storage, no threads, no input or output. Everything else builds on it."""
