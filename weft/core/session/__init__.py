"""Running a network: who owns which fact. Calls and imports go from the top down; a test holds the imports to it.

| who | owns |
|---|---|
| `Runtime` | its registry and options; the sessions of the networks that `load` returned and nobody closed |
| `Session` | what is checked of arguments and results, and whose turn it is |
| `Planner` | the model as it was given, its shapes, the plan that runs use, and what plans are made from |
| `Plans` | the plans of the last sizes and stages, by key, and which of them stay loaded |
| `NetworkPlan` | what a plan takes and gives as it comes, and the steps behind what is loaded for it |
| `Run` | what one run was given, its values, and what ran in it |
| `Rests` | what waits for values of runs, and which of its plans serves how many rows |
| `Later` | a thread in which a second planner works, and what it still has to do |
| `Loader` | the backends that are asked, and notices; whether the network is closed |
| `OpenDevices` | the choices of devices, and their memory managers |
| `Executable` | what is loaded for a plan: its pipelines, copies and report, and the run under way |
| `Pipeline` | one backend object, its executions, tensors and constants, whether it is running |
| `Notifier`, `Notices` | the contexts of a runtime and the next id; the id of one network, and which contexts know it |
| `StateStore` | the values that live from run to run, where they lie, and how many rows they have |
| `RangeCheck` | whether runs are looked at for overflow, and what sees what the next one stores |
| `Growth`, `Capacities` | whether runs are planned for capacities; which sizes grew in the last runs |
| `Prefetch` | what another thread has made of a model so far: the graph, the bound graph, the prepared network |
| `host.shutdown` | the objects that are closed when the process ends |
"""
