"""What a GPU changes in its part of a network before it plans launches; `order.py` lists it."""
