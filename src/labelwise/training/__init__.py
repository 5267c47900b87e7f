"""Training: settings, data on the device, the loop, checkpoints, and what follows a run."""
