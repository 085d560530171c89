## Four or eight halves that a template holds as they lie in memory, as one or two f32x4 and back: see the GLSL twin. The
## template must include ptx.opencl.mako.
<%!
def unpacked(piece, vectors, words=True):
    """Return the statements that make a piece, a uint2 or uint4, vectors."""
    lines = []
    for v, pair in zip(vectors, ("xy", "zw")):
        names = [f"{v}_{e}" for e in range(4)]
        lines.append(f"f32 {', '.join(names)};")
        lines += [f"UNPACK_HALVES({names[2 * w]}, {names[2 * w + 1]}, {piece}.{word});" for w, word in enumerate(pair)]
        lines.append(f"f32x4 {v} = F4({', '.join(names)});")
    return " ".join(lines)

def packed(piece, vectors, words=True):
    """Return the statements that make vectors a piece."""
    lines = []
    for v, pair in zip(vectors, ("xy", "zw")):
        for word, lanes in zip(pair, ("xy", "zw")):
            name = f"{v}_{word}"
            lines.append(f"uint {name}; PACK_HALVES({name}, {v}.{lanes[0]}, {v}.{lanes[1]}); {piece}.{word} = {name};")
    return " ".join(lines)
%>
