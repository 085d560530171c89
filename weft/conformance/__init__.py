"""The conformance kit: hold a backend against the device contract."""
