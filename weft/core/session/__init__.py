"""Running a network: who owns which fact, from the top down. Calls go down as well; a test holds the imports to it.

| who | owns |
|---|---|
| `Runtime` | its registry and options; the sessions of the networks that `load` returned and nobody closed |
| `Session` | the model as it was given, its shapes, the networks of the last few shapes, whose turn it is |
| `LoadedNetwork` | the network that is loaded, its pipelines, memory managers, report and notices, whether it ended |
| `Pipeline` | one backend object, its executions, tensors and constants, whether it is running |
| `Notifier`, `Notices` | the contexts of a runtime and the next id; the id of one network, and who has heard of it |
| `Ahead` | what the thread that reads a model has made of it: graph, bound graph, network; each once |
| `shutdown` | what is open in the process, and is closed when it ends |
"""
