"""What each command takes: arguments, help and examples. Nothing heavy is imported here, so that help comes at once."""
