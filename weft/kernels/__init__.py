"""The kernel toolchain: templates, dialects and launches, for any compute API."""
