"""Selection on a GPU: logits, processors and masks stay there, and a step copies once there and once back."""
