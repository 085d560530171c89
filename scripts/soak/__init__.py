"""Long runs that look for what a short test cannot show: growth, and what a killed process leaves behind.

    python -m scripts.soak grow --device vulkan                        32 threads, 2,000 sessions, 1,000 shapes
    python -m scripts.soak grow --device cpu --sessions 400 --shapes 0 a piece of it
    python -m scripts.soak kill --rounds 200                           kill -9 at random moments
    python -m scripts.soak kill --rounds 40 --device opencl --job tune --seed 7

`grow` prints resident memory, open files, threads and the device's counters at marks at which nothing runs. It exits
with 1 if something grows after the first third, or if a result is wrong. All shapes are new, so that each needs
new kernels; `--kernels-kept` sets the GPU backends' option that limits how many of them stay.

`kill` starts processes that load, tune or save, with empty or filled caches, and kills each at a random
moment. Then another process must find correct numbers, whole files and nothing to warn of. With
`--after N`, the processes are killed before they open, create or rename the N-th file inside the caches instead.
"""
