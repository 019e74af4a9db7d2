"""lm-eval's tasks as documents, requests and scores: its own tasks, and tasks of users' YAML files."""
