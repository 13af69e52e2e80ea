"""Every page and list on a storage with a million jobs, and the cost of viewers for the workers."""
