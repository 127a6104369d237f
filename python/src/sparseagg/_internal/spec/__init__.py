"""What a round computes: its tensors, their shapes, and the options."""
