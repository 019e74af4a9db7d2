"""Process control: interrupts, child processes that end with their parent, and file locks released on process death."""
