"""Who may do what over HTTP: tokens and roles, sessions, the addresses that are answered, and what is never shown."""
