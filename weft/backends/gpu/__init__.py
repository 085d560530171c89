"""Everything about running on a GPU that does not depend on its API."""
