"""Front ends: each turns a file of some format into a `weft.core.graph.Graph`.

A front end is a package here with one function `load`. None of them is imported by `import weft`:
the libraries that they need (`onnx`, for one) are loaded with the first file of their format.
"""
