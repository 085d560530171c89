"""Convolutions of volumes as convolutions of images, one for each slice of the result."""
