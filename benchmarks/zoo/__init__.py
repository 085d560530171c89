"""Networks that people bring: architectures of torchvision, timm and transformers, exported and run on Weft.

    python -m benchmarks.zoo --out FOLDER --devices cpu,opencl,vulkan

`networks.py` lists them. Weights are random and configurations small; nothing is downloaded.
"""
