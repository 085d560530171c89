## Four or eight halves that a template holds as they lie in memory, as one or two f32x4 and back: a prologue's steps are
## computed on these.
<%!
def unpacked(piece, vectors, words=True):
    """Return the statement that makes a piece vectors; `words`: it is a uvec4, else an f16vec4."""
    if not words:
        return f"f32x4 {vectors[0]} = vec4({piece});"
    parts = [", ".join(f"unpackHalf2x16({piece}.{word})" for word in pair) for pair in ("xy", "zw")]
    return "f32x4 " + ", ".join(f"{v} = vec4({part})" for v, part in zip(vectors, parts)) + ";"

def packed(piece, vectors, words=True):
    """Return the statement that makes vectors a piece."""
    if not words:
        return f"{piece} = f16vec4({vectors[0]});"
    pairs = [f"packFloat2x16(f16vec2({v}.{pair[0]}, {v}.{pair[1]}))" for v in vectors for pair in ("xy", "zw")]
    return f"{piece} = uvec4({', '.join(pairs)});"
%>
