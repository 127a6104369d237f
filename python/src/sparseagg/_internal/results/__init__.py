"""What callers get: results, and descriptions of servers, rounds, submissions and tasks."""
