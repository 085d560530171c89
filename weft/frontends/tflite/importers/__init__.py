"""The importers of TensorFlow Lite's ops, a matter a file; importing this registers them all."""

from weft.frontends.tflite.importers import (  # noqa: F401
    activations,
    arithmetic,
    control,
    convolutions,
    custom,
    drawn,
    images,
    indexing,
    landmarks,
    products,
    reductions,
    shapes,
    spectra,
    variables,
)
