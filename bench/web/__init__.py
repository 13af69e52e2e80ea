"""How the web holds up: every page and list on a storage of a million jobs, and workers while many people watch."""
