"""Training: settings, data on the device, the loop, checkpoints, and what follows a run.

``labelwise.training.run.train(settings, folder)`` does it all; the parts work alone too.
"""
