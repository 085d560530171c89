"""Running a network: sessions, the pipelines under them, and what they share."""
