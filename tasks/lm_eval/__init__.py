"""lm-eval's tasks as documents, requests and scores: any of its own, and any that the user's YAML describes."""
