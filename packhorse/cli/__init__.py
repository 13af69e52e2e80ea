"""The command line. `main` has the table of commands; each is imported only when it is called."""
