"""What users import and hold: the app, its tasks, jobs, clients, schedules and pools."""
