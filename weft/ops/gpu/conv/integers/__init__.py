"""Convolutions of images that are stored as integers of eight bits, with weights that are such integers."""
