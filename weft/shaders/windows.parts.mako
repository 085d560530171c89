## What kernels of convolutions have in common that write out the taps of a window.
<%!
def needed(count, taps, stride, dilation):
    """Return the places of a line that so many adjacent outputs read, each with its pairs of an output and a tap."""
    places = {}
    for o in range(count):
        for tap in range(taps):
            places.setdefault(o * stride + tap * dilation, []).append((o, tap))
    return sorted(places.items())
%>
