"""Front ends: each turns a file of some format into a `weft.core.graph.graph.Graph`, and `builder` makes one by hand.

A front end is a package here with one function `load`. `import weft` imports none of them: the libraries
that they need (`onnx`, for one) are loaded with the first file of their format.

`builder.Network` is a network in the making, of `layers` that are joined by `slots`. `signatures` says how many
of these an op has, `inference` what is known of them before a run, and `conversion` makes the graph.
"""
