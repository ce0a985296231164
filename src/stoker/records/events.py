"""The records of a run folder: events in order, one JSON object a line.

``events.jsonl`` holds these records tagged by ``type``; ``run.json`` holds one :class:`RunHeader`. Both carry
``FORMAT``; a reader refuses a newer one rather than misread it. Counters are cumulative per loader, so that a rate is a
difference of two records and a lost line costs resolution only. A new kind of record does not change ``FORMAT``: an
older reader skips its lines and says how many. A field that changes its meaning raises it.
"""

from __future__ import annotations

import msgspec

from stoker.records.versus import Pair

FORMAT = 2
"""2: a loader's parts of time are those up to its last delivery, and sum to the time that passed. In 1 the input wait
left out stoker's own work inside of ``next``, so that rates made of the parts came out too high."""

BASELINE_BATCHES = 20
"""Batches after the warm-up, with exactly the declared workers, that a report compares the end of a run with."""


class RunHeader(msgspec.Struct, kw_only=True):
    """Program, versions, settings and host of a run; written once at the start (``run.json``)."""

    format: int = FORMAT
    run_id: str
    started_unix_s: float
    argv: list[str]
    """The program and its arguments, without stoker's own."""
    cwd: str
    python: str
    stoker: str
    torch: str
    numpy: str
    hostname: str
    cores: float
    """CPU cores this process may use (affinity and cgroup)."""
    memory_bytes: int
    accelerator: str
    """Name of the accelerator, or an empty string."""
    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    config: dict[str, object] = {}
    kills_for_memory: int | None = None
    """Processes of this cgroup or machine that the kernel had killed for lack of memory; older records lack it."""


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    """Base of all records."""

    t_s: float
    """Seconds since the run started (monotonic)."""


class LoaderOpened(Event, tag="loader_opened"):
    """A loader is iterated for the first time: how it is served and why."""

    loader: int
    """Number of the loader in this process, from 0 in the order of first use."""
    site: str
    """``file.py:line`` where the program made the loader."""
    dataset: str
    """Class name of the dataset."""
    length: int | None
    """Batches of an epoch, where the loader knows."""
    batch_size: int | None
    declared_workers: int
    tier: str
    """``elastic``, ``pinned``, ``process`` (in the training process) or ``stock`` (left to torch)."""
    reason: str
    """Why this tier, in one sentence, with file:line where code is the cause."""
    evidence: list[str] = []
    """Further findings, one sentence each."""


class IterationStarted(Event, tag="iteration_started"):
    """The program asked for an iterator over a loader."""

    loader: int
    iteration: int
    workers: int
    start_s: float
    """Time inside ``iter()``."""


class Progress(Event, tag="progress"):
    """A loader's cumulative counters, about once a second and at the end of each iteration.

    Batches, samples, bytes and the parts of the time (``input_wait_s``, ``h2d_s``, ``compute_s``, ``other_s``,
    ``paused_s``) are those of the last delivery, at ``delivered_s``: between two of them the parts sum to what passed.
    What tells of workers and their queue is that of ``t_s``.
    """

    loader: int
    iteration: int
    batches: int
    """Batches delivered since the run started."""
    samples: int
    """Samples delivered, where a batch's size is known."""
    bytes: int
    """Bytes of the delivered batches, as laid out in slots."""
    input_wait_s: float
    """Time inside ``iter`` and ``next``, stoker's own work included."""
    h2d_s: float
    """Time in host-to-device copies issued by the program (0.0 where there is no accelerator)."""
    compute_s: float
    """Time from the batch's arrival to the end of the last optimizer step, without ``h2d_s``."""
    other_s: float
    """The rest of the step: from there to the next ``next()``; the time inside another loader's ``next`` too."""
    starved_steps: int
    """Deliveries that found the next batch not ready."""
    workers: int
    """Data workers alive."""
    ready: int
    """Batches finished and waiting."""
    capacity: int
    """Batches that may be in flight (leases plus ready)."""
    worker_busy_s: float
    """Wall time data workers spent on work items."""
    worker_idle_s: float
    """Wall time data workers waited for something to do."""
    worker_cpu_s: float
    """CPU time of the work items."""
    optimizer_steps: int = 0
    """Optimizer steps that the program made with the loader's batches; older records lack it."""
    delivered_s: float = 0.0
    """When the last batch was delivered, as ``t_s``; 0.0: none yet, or a record of format 1."""
    paused_s: float = 0.0
    """Time between the end of an iteration and the next ``iter``: a pause of the loader, and part of no rate."""
    starved_s: float | None = None
    """Part of ``input_wait_s``: the next batch was not made yet. The rest is stoker's own time. None: not known."""
    away: int = 0
    """Data workers among ``workers`` that are on other machines."""
    items_away: int = 0
    """Work items that other machines have made."""
    waiting_s: float = 0.0
    """How long the program has been waiting for the next batch, as of ``t_s``: not part of ``input_wait_s`` yet."""


class WorkersChanged(Event, tag="workers_changed"):
    """The policy asked for another number of data workers or another depth."""

    loader: int
    workers: int
    depth: int
    reason: str
    away: int = 0
    """How many of these are to be on other machines."""


class WorkerLost(Event, tag="worker_lost"):
    """A data worker died, hung, was stopped or was recycled; its leases were issued again."""

    loader: int
    worker: int
    pid: int
    cause: str
    released: int
    """Work items issued again; none is lost."""
    stack: str = ""
    """Where the worker was, when it hung or was stopped."""
    place: str = ""
    """The machine that it was on; empty for the program's own."""


class SampleQuarantined(Event, tag="sample_quarantined"):
    """A sample that killed its data worker twice was left out or replaced."""

    loader: int
    index: str
    path: str
    seed: int
    action: str
    """``skip`` or ``replace``."""


class Notice(Event, tag="notice"):
    """A notice: one line for the user."""

    text: str
    loader: int = -1
    trace: str = ""
    """Traceback of an error inside stoker."""


class GraphNode(msgspec.Struct, kw_only=True):
    """A recorded call of a step's dataflow graph, as people are shown it."""

    number: int
    """Place in program order, from 0."""
    function: str
    """Short path: ``functional.one_hot``, ``Tensor.log1p``."""
    inputs: list[int]
    """Numbers of the values among its arguments."""
    outputs: list[int]
    """Numbers of the values it made."""
    seconds: float
    """Median over the recorded steps."""
    site: str
    """``file.py:line`` of the call in the program."""
    place: str
    """``moved`` (to data workers), ``stateless`` (could move, stays by choice) or ``stateful``."""
    why: str = ""
    """Why it stays, or is stateful; empty for a moved one."""


class GraphValue(msgspec.Struct, kw_only=True):
    """A tensor of a step's dataflow graph: a leaf of the batch, or a result of a call."""

    number: int
    producer: int | None
    """Number of the node that made it; None for a leaf."""
    label: str
    """What people call it: ``batch[1]`` for a leaf, ``x7`` for a result."""
    shape: list[int]
    dtype: str
    """The name that torch prints, without ``torch.``."""
    size_bytes: int
    crosses: bool
    """Data workers send it to the training process: a result on the boundary, or a leaf that is still used there."""
    kept: str = ""
    """Why the training process itself needs it, if it does (``read into Python``)."""


class CutChosen(Event, tag="cut_chosen"):
    """What was moved of a loader's steps into its data workers, with the graph it was chosen on.

    A later record of the same loader and variant replaces an earlier one.
    """

    loader: int
    variant: int
    """Number of the kind of step (training, evaluation, a last short batch), from 0 in the order of appearance."""
    steps: int
    """Number of recorded steps."""
    step_s: float
    """Median time from a batch's delivery to the next request, before anything was moved."""
    outcome: str
    """``moved``, ``stayed`` (nothing is worth moving) or ``reverted`` (it was moved and did not pay)."""
    reason: str
    """Why this outcome, in one sentence."""
    saved_s: float
    """Seconds saved in a step of the training process: predicted, or measured after the trial."""
    worker_s: float
    """Seconds of data-worker time that the moved calls take, a step."""
    bytes_before: int
    """Bytes of a batch as the loader yields it."""
    bytes_after: int
    """Bytes of a batch as data workers send it with the cut."""
    nodes: list[GraphNode] = []
    """In program order."""
    values: list[GraphValue] = []


class CacheUsed(Event, tag="cache_used"):
    """What the processes of a host read through the data cache so far."""

    directory: str
    """Directory of the cache."""
    asked_bytes: int
    """Bytes returned to programs."""
    hit_bytes: int
    """Bytes of these that came from pages of the cache."""
    peer_bytes: int
    """Fetched from other nodes of the cache."""
    fetched_bytes: int
    """Fetched from stores, in whole pages, so it may exceed what was read."""
    requests: int
    """Requests to stores for bytes."""
    checks: int
    """Requests to stores for an object's version."""
    changes: int
    """Answers that found another version than the cached one."""
    processes: int
    """Processes that read."""
    around: list[str] = []
    """Imported libraries that read stores with their own code, without the cache."""


class PairCompared(Event, tag="pair_compared"):
    """Stoker's and torch's workers served a loader for a round each, after the warm-up."""

    loader: int
    pair: Pair


class ComparisonEnded(Event, tag="comparison_ended"):
    """No further rounds of a loader are compared with torch's own."""

    loader: int
    reason: str = ""
    """Why not all requested rounds ran, as half a sentence; empty if they did."""


class TrainingStarted(Event, tag="training_started"):
    """A rank made its first step of an optimizer; under `stoker run --training-workers` alone."""

    resumed: bool
    """Whether it had read a checkpoint by then."""
    gradient_bytes: int
    """Gradients of the parameters that it trains."""


class CheckpointSaved(Event, tag="checkpoint_saved"):
    """A checkpoint is complete: its writing has returned, and all ranks have made a step since."""

    path: str
    """Its last file; empty where that has no name."""
    steps_since: int
    """Steps of an optimizer since it was begun."""


class SizesChosen(Event, tag="sizes_chosen"):
    """How many training workers the program has, and why; a later record replaces an earlier one."""

    workers: int
    """Training workers."""
    reason: str
    changes: int = 0
    """How often their number has changed."""
    most_feeders_each: int | None = None
    """Most data workers of each; None leaves their number to the queue."""


class ModelAveraged(Event, tag="model_averaged"):
    """All ranks took the mean of their weights; they train apart in between."""

    model: str
    """Its class, and its number among those that are averaged."""
    ranks: int
    step: int
    """Steps of the optimizer so far."""
    steps_since: int
    """Those since the last average."""
    period: int
    """Steps to the next one."""
    agreement: float | None
    """``|mean change|^2 / mean |change|^2`` of the ranks, from 0 to 1; None where nothing changed."""
    compute_s: float
    """Seconds of a step of the slowest rank, without exchanges."""
    exchange_s: float
    """Seconds of this average."""
    bytes: int
    """What was averaged on a rank: weights, buffers, optimizer state."""
    reason: str
    """``warm-up``, ``period``, or what it came before."""


class VersionStarted(Event, tag="version_started"):
    """A version of a model is warm and can be asked by `stoker serve`."""

    model: str
    version: str
    source: str
    """Where it was loaded from."""
    platform: str
    """What computes it."""
    costs: list[tuple[int, float]]
    """Samples of a batch and the seconds that it takes, as measured at the start."""


class ServedWindow(Event, tag="served_window"):
    """What `stoker serve` did with the requests for a model in about a second."""

    model: str
    version: str
    """That answered at the end."""
    seconds: float
    outcomes: dict[str, int]
    """Requests: ``answered``, ``refused`` on arrival, ``dropped`` at dispatch, ``malformed``, ``failed``,
    ``cancelled``."""
    p50_s: float | None
    """From arrival to answer, of answered ones; None without any."""
    p99_s: float | None
    batch: float | None
    """Mean samples of a batch; None without any."""
    waiting: int
    """Requests at the end."""
    engines: int
    """That were warm at the end."""
    retries: int
    """Requests that lost their engine and ran again."""
    latencies: list[tuple[float, int]] | None = None
    """Times from arrival to answer, and how many answers took at most so long and more than the time before it;
    None in records of earlier versions."""


class RunEnded(Event, tag="run_ended"):
    """The program ended; absent when it was killed."""

    outcome: str
    """``finished``, the class name of the exception that ended it, or ``forced``: a second signal ended a service."""


AnyEvent = (
    LoaderOpened
    | IterationStarted
    | Progress
    | WorkersChanged
    | WorkerLost
    | SampleQuarantined
    | CutChosen
    | Notice
    | CacheUsed
    | PairCompared
    | ComparisonEnded
    | TrainingStarted
    | CheckpointSaved
    | SizesChosen
    | ModelAveraged
    | VersionStarted
    | ServedWindow
    | RunEnded
)
"""Every record that can stand in ``events.jsonl``."""
