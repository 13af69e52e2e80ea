"""The web: a JSON API, live numbers and pages, on Starlette. It reaches jobs only through the client and the storage.
It never connects to a worker, never imports a user's code, and stores nothing of its own."""
