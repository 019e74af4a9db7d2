"""What a checkpoint is and what can be run on it, told before anything is: `exitbench inspect`."""
