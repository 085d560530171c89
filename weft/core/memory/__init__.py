"""The memory planner of all devices: it records the lifetimes of tensors and packs them into one arena."""
