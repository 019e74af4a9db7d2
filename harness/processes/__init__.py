"""Process control: interrupts, ending child processes with their parent, and file locks released on process death."""
