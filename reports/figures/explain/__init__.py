"""Why published numbers come out as they do."""
