"""Networks built by hand: `Network`, its layers and the slots that join them."""
