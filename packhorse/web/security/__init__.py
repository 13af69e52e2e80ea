"""Security of the web: tokens and roles, sessions, the host names it answers to, and redaction."""
