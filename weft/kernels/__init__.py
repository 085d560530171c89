"""The kernel toolchain: templates, dialects, launches. It knows no API."""
