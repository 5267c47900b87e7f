"""Export: one file from pixels to decided labels, asserted equal to the model it came from."""
