import importlib, pkgutil, weft.ops
for m in pkgutil.iter_modules(weft.ops.__path__):
    if m.name!="gpu": importlib.import_module("weft.ops."+m.name)
