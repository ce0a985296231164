"""Marks of tests by their place: what only ``make test-all`` runs, what is run apart, which files need not be read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("integration", "exhaustive", "forking", "gpu")
"""Marks by which runs choose their tests."""

FORKING = ("tests/faults/", "tests/feed/", "tests/run/test_library.py")
"""Tests whose data workers are forked from the tests' own process, again and again. A fork costs in proportion to the
memory of its parent: a process that has run the cache's tests before takes five times as long for these."""

EXHAUSTIVE: dict[str, str] = {
    "tests/cli/deploy/test_build.py::test_a_module": "stays: its first step, and each command by itself",
    "tests/deploy/importing/test_batch_constants.py::test_a_bert": "stays: masks of all forms",
    "tests/deploy/importing/test_preparing.py::test_training_wins": "stays: numbers and state of a prepared model",
    "tests/deploy/hardware/test_fitting.py::test_a_dense": "stays: what is too large; no synthesis there",
    "tests/deploy/hardware/test_fitting.py::test_an_engine": "stays: as above",
    "tests/deploy/hardware/test_engine.py::test_models_made_at_random": "stays: four models on one engine, a change",
    "tests/deploy/hardware/test_host_tables.py::test_a_simulated": "stays: host and device by the law, and each cut",
    "tests/deploy/hardware/test_many_nets.py": "stays: test_live, most units in one simulator",
    "tests/deploy/hardware/test_netlists.py::test_cells": "stays: units and structures, pure; circuits, in rtl/proofs",
    "tests/deploy/hardware/test_netlists.py::test_each": "stays: as above",
    "tests/deploy/hardware/test_activity.py::test_what": "stays: recorded counts",
    "tests/deploy/rtl/proofs/test_arithmetic.py": "stays: an accumulator, and sums of products",
    "tests/deploy/rtl/proofs/test_engine_banks.py": "stays: changes of models on whole engines, live",
    "tests/deploy/rtl/proofs/test_engine_control.py": "stays: as above",
    "tests/deploy/rtl/proofs/test_engine_registers.py": "stays: each write and read is answered once",
    "tests/deploy/rtl/proofs/test_engine_rows.py": "stays: rows on whole engines, live",
    "tests/deploy/rtl/proofs/test_engine_units.py": "stays: a requantiser",
    "tests/deploy/rtl/proofs/test_fed_units.py": "stays: a table",
    "tests/deploy/rtl/proofs/test_cells.py": "stays: units before synthesis",
    "tests/deploy/rtl/proofs/test_streams.py": "stays: a deep FIFO",
    "tests/deploy/rtl/proofs/test_updates.py": "stays: a deep FIFO; updates, live",
    "tests/deploy/rtl/proofs/test_windows.py": "stays: one pixel",
    "tests/deploy/hardware/test_updates.py::test_many": "stays: all units with numbers in one simulator",
    "tests/deploy/hardware/test_updates.py::test_every_output": "stays: a change in mid-stream, in test_engine",
    # What repeats a kind of test that stays in `make test`, by the id of a test from its beginning on; `*` is any text.
    "tests/serve/test_grpc.py::test_clients_that_leave": "stays: answers; clients of HTTP",
    "tests/serve/test_grpc.py::test_health": "stays: answers, and another's client",
    "tests/serve/test_grpc.py::test_refusals": "stays: answers; the same refusals over HTTP",
    "tests/serve/test_live.py::TestClients": "stays: what requests may hold, in test_requests; statuses, live",
    "tests/serve/test_live.py::TestConnections::test_what_does_not_fit": "stays: places in a slot, pure",
    "tests/serve/test_live.py::TestProcesses::test_a_drain": "stays: killed engines",
    "tests/serve/test_live.py::TestProcesses::test_a_stopped": "stays: killed engines",
    "tests/serve/test_live.py::TestProcesses::test_nothing_is_left_after_its_end[True": "stays: not stopped",
    "tests/serve/test_live.py::TestProcesses::test_the_end_of": "stays: killed engines",
    "tests/serve/test_live.py::TestSources": "stays: one form, of ONNX; refusals of the queue, pure",
    "tests/serve/test_live.py::TestTorch": "stays: ONNX, by the same processes",
    "tests/serve/test_live.py::TestVersions::test_a_version": "stays: answers of one version",
    "tests/train/arena/eager/test_allocator.py::test_another_step": "stays: a real step; drawn plans and requests",
    "tests/train/arena/eager/test_allocator.py::test_real_steps_go_by_the_plan[medium_256": "stays: one of four steps",
    "tests/train/arena/eager/test_allocator.py::test_real_steps_go_by_the_plan[medium_512": "stays: one of four steps",
    "tests/train/arena/eager/test_allocator.py::test_real_steps_go_by_the_plan[medium_1024": "stays: one of four steps",
    "tests/train/arena/test_backend.py::test_a_": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_autocast": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_changes": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_double": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_evaluation": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_gradients": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_hooks": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_other": "stays: steps; what a program keeps",
    "tests/train/arena/test_backend.py::test_threads": "stays: calls at once, of shared models",
    "tests/train/arena/test_backend.py::test_what_a_program_keeps_is_not_overwritten[views": "stays: themselves",
    "tests/train/arena/test_generated.py": "stays: steps; what a program keeps",
    "tests/backends/ray/test_clusters.py::test_status": "stays: what is shown of records",
    "tests/backends/ray/test_clusters.py::test_a_second_one": "stays: jobs on a live cluster",
    "tests/backends/ray/test_clusters.py::test_who_has_no": "stays: as above; proofs of secrets, in tests/wire",
    "tests/backends/ray/test_faults.py::test_a_broker_that_is_killed": "stays: jobs that outlive the allocator",
    "tests/backends/remote/test_admission.py::TestLive::test_a_sample_that_fails": "stays: other bytes, other packages",
    "tests/backends/remote/test_caching.py::test_two_hosts": "stays: a program through a ring, in tests/cache/run",
    "tests/backends/remote/test_feed_faults.py": "stays: test_faults: what dies there, and here",
    "tests/backends/remote/test_sharing.py::test_the_process_that_keeps": "stays: claims, one of which ends",
    "tests/backends/remote/test_sharing.py::test_two_ranks": "stays: as above; a host of one rank, in test_faults",
    "tests/backends/remote/test_faults.py::test_the_training_process": "stays: a host that is killed",
    "tests/backends/remote/test_admission.py::TestLive::test_those_of_the_programs_environment": "stays: without it",
    "tests/backends/remote/test_faults.py::test_a_gateway_that_stops": "stays: a gateway that is killed",
    "tests/backends/remote/test_faults.py::test_a_link_that_is_cut": "stays: a host that is killed",
    "tests/backends/remote/test_faults.py::test_a_stopped_gateway": "stays: a gateway that is killed",
    "tests/backends/remote/test_faults.py::test_a_worker_there": "stays: its process there",
    "tests/backends/remote/test_faults.py::test_its_process_under_a_later_loader": "stays: its process there",
    "tests/backends/remote/test_admission.py::TestLive::test_a_machine_at_which_all_fail": "stays: one that fails",
    "tests/backends/remote/test_faults.py::test_one_that_stops": "stays: as above",
    "tests/backends/remote/test_program.py::test_the_same_losses": "stays: cases of the contract through a host",
    "tests/benchmarks/test_benchmarks.py::test_the_last_line_of_a_tiny_run_is_json": "stays: one of the bars",
    "tests/cache/cluster/test_partitions.py": "stays: a black hole",
    "tests/cache/cluster/test_faults.py::test_a_stopped_worker_costs_one_time_out_once[tcp": "stays: unix",
    "tests/cache/cluster/test_pin_transfer.py::*worker_has_left[file": "stays: static",
    "tests/cache/filesystem/test_abstract.py::TestLocal": "stays: the same of fsspec's suites over memory",
    "tests/cache/filesystem/test_abstract.py::TestS3": "stays: the same of fsspec's suites over memory",
    "tests/cache/filesystem/test_eight_processes.py": "stays: test_processes",
    "tests/cache/filesystem/test_memory.py": "stays: programs that open many files",
    "tests/cache/filesystem/test_model.py": "stays: any interleaving under the rule that is asked each time",
    "tests/cache/run/test_run.py::test_what_a_program_installs": "stays: children of all kinds read through it",
    "tests/cache/store/test_crashes.py": "stays: crashes in the middle of calls, in a store that is used",
    "tests/cache/store/test_flips.py": "stays: any bit of the table of an open store; of records, in test_damage",
    "tests/cache/store/test_processes.py::test_four_processes_under_eviction[epoch": "stays: lru",
    "tests/contract/test_contract.py::test_equal_to_torch[change-": "stays: groups of order and values",
    "tests/contract/test_contract.py::test_equal_to_torch[errors-key_error": "stays: other errors",
    "tests/run/memory/test_killed.py::test_the_next_run": "stays: the same on records of runs, without a process",
    "tests/run/memory/test_ending.py::test_nothing_is_said*quiet": "stays: caught; what is said, once",
    "tests/cli/test_plan_definitions.py::test_a_function_of_a_file_is_asked": "stays: its mistakes; tracing, in perf",
    "tests/cli/test_plan_definitions.py::test_definitions*[mode:": "stays: other mistakes",
    "tests/cli/test_plan_definitions.py::test_definitions*[model.py:extra": "stays: as above",
    "tests/cli/test_plan_definitions.py::test_definitions*[model.py:fails": "stays: as above",
    "tests/contract/test_elsewhere.py": "stays: samples of another machine, in backends/remote",
    "tests/contract/test_contract.py::test_equal_to_torch[context-": "stays: contexts, in tests/faults/test_forks",
    "tests/contract/test_contract.py::test_equal_to_torch[frameworks-": "stays: as above; real ones, in ecosystem",
    "tests/contract/test_contract.py::test_equal_to_torch[lazy-": "stays: one of a group",
    "tests/contract/test_contract.py::test_equal_to_torch[lifetime-": "stays: as above",
    "tests/contract/test_contract.py::test_equal_to_torch[random-": "stays: as above",
    "tests/cut/test_programs.py::test_same_and_moved[lightning_steps]": "stays: served, in ecosystem; cuts of others",
    "tests/cut/test_programs.py::test_same_and_moved[trainer_steps]": "stays: as above",
    "tests/cut/test_programs.py::test_same_and_moved[accelerate_steps]": "stays: as above",
    "tests/ecosystem/test_distributed.py": "stays: torchrun, in tests/run/test_launch",
    "tests/ecosystem/test_frameworks.py::test_model_compiled_to_machine_code": "stays: compiled models, in profiling",
    "tests/ecosystem/test_frameworks.py::test_pinned_tier": "stays: the pinned tier in contract and cut",
    "tests/examples/test_examples_stoker.py::test_losses_do_not_depend_on_what_happens_to_workers": "stays: faults",
    "tests/examples/test_examples_stoker.py::test_plain_losses_do_not_depend_on_workers[iterable": "stays: images",
    "tests/examples/test_examples_stoker.py::test_losses_are_those_of_plain_python[tabular": "stays: images",
    "tests/examples/test_examples_stoker.py::test_losses_are_those_of_plain_python[iterable": "stays: images",
    "tests/examples/test_examples_stoker.py::test_plain_losses_do_not_depend_on_workers[tabular": "stays: as above",
    "tests/examples/test_examples_stoker.py::test_losses_are_those_of_plain_python[text": "stays: images",
    "tests/examples/test_examples_stoker.py::test_plain_losses_do_not_depend_on_workers[text": "stays: as above",
    "tests/cut/test_programs.py::test_same_and_moved[features]": "stays: cuts of others",
    "tests/cut/test_programs.py::test_same_and_moved[compiled]": "stays: as above",
    "tests/cut/test_programs.py::test_same_and_moved[mnist]": "stays: imagenet",
    "tests/cut/test_programs.py::test_same_and_moved[changes]": "stays: as above",
    "tests/cut/test_programs.py::test_nothing_is_compiled_again": "stays: as above",
    "tests/run/test_lacking.py": "stays: what a torch without a name costs, in tests/graph; `make torch-matrix`",
    "tests/cut/test_ways.py::test_data_parallel_and_sharded_ranks": "stays: ranks, in ecosystem",
    "tests/docs/test_code_blocks.py::test_blocks_run[docs/": "stays: README",
    "tests/faults/test_bad_samples.py::TestLeaveOut::test_holds_in_a_moved_loader": "stays: drawn, skip",
    "tests/faults/test_deaths.py::test_a_program_that_restarts_on_torchs_error[s": "stays: an exit",
    "tests/faults/test_deaths.py::*[elastic, drawn lazily": "stays: at random; elastic, which draws ahead",
    "tests/faults/test_deaths.py::*[persistent": "stays: at random; elastic",
    "tests/faults/test_deaths.py::*[pinned, random": "stays: at random; pinned",
    "tests/faults/test_folders.py::test_program_that_starts_programs": "stays: two runs in one place, and in turn",
    "tests/faults/test_generator_lock.py::test_threads_that_read_it_end[stoker.feed": "stays: that of graph",
    "tests/faults/test_leaks.py": "stays: elastic iterators that are left half way",
    "tests/faults/test_memory.py": "stays: a worker that is killed for memory",
    "tests/faults/test_planted.py": "stays: mistakes planted under one program",
    "tests/feed/test_compared.py::test_a_loader_without_workers_is_compared": "stays: with workers",
    "tests/feed/test_moved.py::test_moved_batches_are_those_of_torch[False": "stays: shuffled",
    "tests/perf/features/test_program_libraries.py::test_trainer_with_accumulation": "stays: lightning",
    "tests/perf/machine/test_calibrating.py::test_this_machine": "stays: which probes come when; an exchange, measured",
    "tests/perf/machine/test_calibrating.py::test_a_machine_too_slow": "stays: as above",
    "tests/perf/study/test_published.py::test_traces_are_what_tracing_makes[waveglow": "stays: three others",
    "tests/perf/study/test_scoreboard.py": "stays: what the scoreboard is made of, table by table",
    "tests/perf/study/workloads/test_modules.py::test_r": "stays: names and numbers of parameters",
    "tests/profiling/test_ranks.py::test_the_slow_rank_is_named[inside": "stays: around torchrun",
    "tests/profiling/test_ranks.py::test_where_the_exchange": "stays: the rules over recorded features",
    "tests/profiling/test_served.py::test_no_more_of_the_same": "stays: what a run gains; the words, in test_advice",
    "tests/run/exchanging/test_exchanging.py::test_a_rank_of_another_version": "stays: train/program/test_versions",
    "tests/run/fitting/test_fitting.py::test_a_program_that_fits": "stays: one that is made to fit",
    "tests/run/fitting/test_fitting.py::test_a_cache": "stays: objects that a block writes to, in train/fitting",
    "tests/run/fitting/test_fitting.py::test_a_report_touches": "stays: as above; no plan, in perf",
    "tests/run/fitting/test_frameworks.py": "stays: a program without a framework",
    "tests/run/fitting/test_fitting.py::test_what_fits_no_other_way": "stays: host memory, in train/fitting",
    "tests/cli/test_memory.py::test_a_definition_that_fits_once": "stays: definitions that fit, and programs",
    "tests/contract/test_contract.py::test_equal_to_torch[change-list_grows": "stays: other changes",
    "tests/cut/test_programs.py::test_same_and_moved[grads": "stays: other programs",
    "tests/backends/ray/allocator/test_live.py::test_two_jobs_share": "stays: jobs that outlive the allocator",
    "tests/backends/remote/test_faults.py::test_its_process_there_is": "stays: the gateway, and the host itself",
    "tests/run/fitting/test_fitting.py::test_a_report_promises": "stays: one that is made to fit; the choice, in perf",
    "tests/run/fitting/test_ranked.py::test_a": "stays: ranks as a launcher starts them; the choice, in perf",
    "tests/run/fitting/test_ranked.py::test_stoker_under": "stays: as above",
    "tests/run/fitting/test_ranked.py::test_what_one_rank": "stays: refusals on all ranks, in train/sharding",
    "tests/train/fitting/test_fitted_ranks.py": "stays: one model; shared states, in train/sharding",
    "tests/train/fitting/test_recomputing.py::test_it_loads_in_a_python": "stays: files that do not name stoker",
    "tests/run/exchanging/test_exchanging.py::test_a_programs_own_hook": "stays: on ranks, in tests/train/test_ranks",
    "tests/run/exchanging/test_exchanging.py::test_what_a_framework": "stays: ranks that a program starts",
    "tests/run/exchanging/test_exchanging.py::test_modules_of_fsdp2": "stays: a program without replicas",
    "tests/run/elastic/test_frameworks.py": "stays: what each of them comes to, in test_checkpoints",
    "tests/run/elastic/test_live.py": "stays: jobs on Ray that grow and shrink; decisions with ranks that are none",
    "tests/run/test_honest.py::test_report_says_what_the_program_measures[off": "stays: with cuts",
    "tests/run/test_library.py::test_a_resumed_iteration_goes_on_as_the_uninterrupted_one[edges": "stays: from inside",
    "tests/run/test_library.py::test_batches_stay_what_they_are_when_iterations_are_left_at_any_point[many": "a few",
    "tests/run/test_launch.py::TestHook::test_a_program_without_loaders_is_told_so[u": "stays: one in a child, quiet",
    "tests/run/test_terminal.py::test_everything_has_lines_of_its_own[n": "stays: y",
    "tests/run/test_replay.py::test_a_rank_of_torchrun": "stays: the sample of one process; torchrun, in launch",
    "tests/scale/test_job.py::test_items_that_vary_do_not_make_it_flap[": "stays: one seed of four",
    "tests/scale/test_job.py::test_others_on_the_machine_are_no_reason_for_more_workers[False": "stays: with stalls",
    "tests/test_layers.py::test_a_planted_import_is_found[cache/": "stays: core, feed, graph, cli, run, records",
    "tests/test_layers.py::test_a_planted_import_is_found[perf/": "stays: core, feed, graph, cli, run, records",
    "tests/test_layers.py::test_a_planted_import_is_found[ui/": "stays: core, feed, graph, cli, run, records",
    "tests/test_layers.py::test_a_planted_import_is_found[wire/": "stays: core, feed, graph, cli, run, records",
    "tests/warm/test_programs.py::test_the_same_end[served, raises": "stays: raised, plain; interrupted, served",
    "tests/warm/test_programs.py::test_the_same_end[served, at exit": "stays: at exit, plain; as above",
    "tests/warm/test_programs.py::test_the_same_facts[module": "stays: a served one",
    "tests/warm/test_programs.py::test_the_same_facts[script": "stays: a served one",
    "tests/warm/test_programs.py::test_the_same_facts[text": "stays: as above",
    "tests/train/averaging/test_ranks.py::test_islands": "stays: means of all ranks",
    "tests/train/exchanging/test_lost_ranks.py": "stays: a lost rank of a ring, in tests/train/ring",
    "tests/gpu/test_exchange_cuda.py::*cpu": "stays: the same methods on three ranks, in tests/train/test_ranks",
    "tests/train/ring/test_search.py::test_ranks_placed": "stays: the clustering; a search of islands that are told",
    "tests/train/sharding/test_states.py::test_every_optimizer": "stays: AdamW, scaled, clipped, with two groups",
    "tests/train/sharding/test_weights.py::test_every_optimizer": "stays: AdamW, SGD, clipped, with two groups",
    "tests/run/exchanging/test_splitting.py": "stays: layers split between two steps, in tests/train/splitting",
    "tests/train/sharding/test_ends.py::*[weights": "stays: states",
    "tests/train/splitting/test_served.py::test_each_split": "stays: all of them in one model, kept and taken back",
    "tests/train/splitting/test_served.py::test_rank_0_alone": "stays: a checkpoint, in tests/run/exchanging",
    "tests/train/splitting/test_served.py::test_what_a_split": "stays: ranks that go apart; reasons, in tests/perf",
    "tests/train/splitting/test_ranks.py::*[3": "stays: two ranks",
    "tests/train/splitting/test_ranks.py::test_ranks_of_multiprocessing": "stays: programs that end",
    "tests/train/test_ranks.py::*[equal": "stays: four of twelve models",
    "tests/train/test_ranks.py::test_slow_sockets": "stays: a plan that names own sockets",
    "tests/train/test_ranks.py::test_a_thousand": "stays: a thousand sums of a ring, in tests/train/ring",
    "tests/train/test_ranks.py::test_weights_that_the_program": "stays: a planted different bit",
    "tests/train/test_ranks.py::test_where_one_rank_cannot_look": "stays: one rank that can't connect",
    "tests/train/test_ranks.py::test_a_trial": "stays: the trial by turns, in core",
    "tests/backends/ray/test_clusters.py::test_the_token_is": "stays: an open token is named, without a cluster",
    "tests/backends/ray/test_faults.py::test_a_host_that_is_killed": "stays: jobs, live; one of another machine",
    "tests/backends/remote/test_admission.py::TestLive::test_another_secret": "stays: proofs, in tests/wire",
    "tests/backends/remote/test_admission.py::TestLive::test_other": "stays: what differs, without a process",
    "tests/backends/remote/test_admission.py::TestLive::test_samples": "stays: one that fails",
    "tests/backends/remote/test_faults.py::test_each_item": "stays: the host itself",
    "tests/backends/remote/test_faults.py::test_the_gateway": "stays: the host itself",
    "tests/backends/remote/test_packages.py::test_a_host_installs": "stays: the program's version is installed",
    "tests/cache/cli/test_small_disk.py::test_a_filled": "stays: programs on a small disk",
    "tests/cache/cluster/test_pin_transfer.py::test_pages_that_nobody": "stays: other pages that go to their owners",
    "tests/cache/cluster/test_recent_rates.py::test_status": "stays: rates of records",
    "tests/cache/cluster/test_replicating.py::test_what_finds": "stays: pages that outlive their owner",
    "tests/cache/cluster/test_started_door.py::test_a_second": "stays: objects and metrics of a started one",
    "tests/cache/cluster/test_started_ring.py::test_two_workers": "stays: owners, explained",
    "tests/cache/cluster/test_tls.py::test_who_is_not": "stays: all who speak it; names that fail, in tests/wire",
    "tests/cache/run/test_cluster.py::test_a_ring_on_tcp": "stays: nodes that read through it; secrets, in cluster",
    "tests/cache/run/test_run.py::test_a_model_is_kept": "stays: the report and the record; models, in cache/models",
    "tests/cache/run/test_run.py::test_children": "stays: children that inherit it, in cache/filesystem",
    "tests/cache/run/test_run.py::test_how_pages_go": "stays: rules of eviction, in cache/store",
    "tests/cache/run/test_run.py::test_pyarrow": "stays: what goes through fsspec",
    "tests/cli/test_demo.py::test_one_screen": "stays: the demo of the README",
    "tests/cli/test_doctor.py::test_it_fails": "stays: this machine; each line, without a process",
    "tests/cli/test_explain.py::TestProgram::test_ranks": "stays: one process; ranks that end, in tests/run",
    "tests/cut/test_programs.py::test_same_and_moved[inplace": "stays: imagenet",
    "tests/cut/test_programs.py::test_same_and_moved[kinds": "stays: imagenet; kinds of calls, in tests/graph",
    "tests/cut/test_ways.py::test_pinned": "stays: others",
    "tests/cut/test_random.py::test_kept": "stays: the same for any workers and any cut",
    "tests/ecosystem/test_frameworks.py::test_same_losses": "stays: Lightning, traced; programs of their own loops",
    "tests/ecosystem/test_frameworks.py::test_compiled_model": "stays: compiled models, in profiling and tests/graph",
    "tests/examples/test_examples_stoker.py::test_losses_are_those_of_plain_python[images": "stays: README",
    "tests/examples/test_examples_stoker.py::test_plain_losses*[images": "stays: README",
    "tests/examples/test_examples_stoker.py::test_random": "stays: README; random streams, in tests/contract",
    "tests/faults/test_endings.py::test_killed_with": "stays: killed",
    "tests/faults/test_endings.py::test_ended_while": "stays: interrupted",
    "tests/faults/test_folders.py::test_one_folder": "stays: two runs in one place",
    "tests/faults/test_folders.py::test_two_runs_into": "stays: two runs in one place",
    "tests/faults/test_forks.py::test_same_as_plain[contexts": "stays: children",
    "tests/faults/test_first_worker.py::test_changed": "stays: other first workers",
    "tests/faults/test_stalls.py::TestHanging::test_collate": "stays: twice",
    "tests/faults/test_stalls.py::TestStopped::test_template_at": "stays: other processes that are stopped",
    "tests/perf/features/test_programs_of_all_kinds.py::test_a_module": "stays: programs of other kinds",
    "tests/perf/features/test_programs_of_all_kinds.py::test_two_networks": "stays: programs of other kinds",
    "tests/perf/features/test_programs_of_all_kinds.py::test_a_tied": "stays: sparse gradients",
    "tests/perf/features/test_programs_of_all_kinds.py::test_a_program_that_prints*[True": "stays: alone",
    "tests/perf/features/test_program.py::test_images": "stays: replicas, sharded modules",
    "tests/perf/features/test_program.py::test_sequences": "stays: as above",
    "tests/perf/features/test_program.py::test_a_program_without_steps*[stops": "stays: killed",
    "tests/profiling/test_ranks.py::test_the_slow_rank_is_named[around": "stays: the rules over recorded features",
    "tests/run/exchanging/test_averaging.py::test_modules": "stays: ranks, in train/averaging; one voice, beside it",
    "tests/perf/machine/test_exchange.py::test_two_processes": "stays: the fit; ranks that measure, in tests/train",
    "tests/run/test_names.py": "stays: names that are text",
    "tests/run/test_launch.py::TestTorchrun::test_torchrun_outside": "stays: inside",
    "tests/run/test_versus.py::test_a_loader_that_gains": "stays: a run that gains is measured, in profiling",
    "tests/train/sharding/test_weights.py::test_a_server": "stays: states of one step",
    "tests/train/test_ranks.py::test_a_rank_that_has_joined": "stays: others of a plan",
    "tests/train/test_ranks.py::test_compressed": "stays: a wrong factor falls back",
    "tests/train/test_ranks.py::test_links": "stays: islands of a ring, in tests/train/ring",
    "tests/train/test_ranks.py::test_torch_exchanges": "stays: others of a plan",
    "tests/warm/test_programs.py::test_the_same_end[served, interrupted": "stays: interrupted, in faults",
}
"""Tests that `make test` leaves to `make test-all`, and what of their kind stays."""
STAYS = (
    "tests/deploy/rtl/proofs/test_arithmetic.py::test_every_accumulator_is_requantised_by_the_law[18-",
    "tests/deploy/rtl/proofs/test_arithmetic.py::test_every_sum_of_products[2-0",
    "tests/deploy/rtl/proofs/test_engine_registers.py::test_each_write_and_each_read_is_answered_once",
    "tests/deploy/rtl/proofs/test_engine_units.py::test_every_shift_of_every_factor",
    "tests/deploy/rtl/proofs/test_fed_units.py::test_all_numbers_are_the_laws[a table, unsigned-0.4",
    "tests/deploy/rtl/proofs/test_streams.py::test_a_fifo_holds_its_words_in_order[3-changes2",
    "tests/deploy/rtl/proofs/test_windows.py::test_beats_are_those_of_the_windows[one pixel",
    "tests/benchmarks/test_benchmarks.py::test_the_last_line_of_a_tiny_run_is_json[cache_hit_local]",
    "tests/cache/filesystem/test_memory.py::test_memory_is_bounded_whatever_is_read[open",
    "tests/cache/cluster/test_partitions.py::test_a_black_hole",
    "tests/cache/filesystem/test_model.py::test_any_interleaving[always",
    "tests/cache/store/test_flips.py::test_any_file[table-True]",
    "tests/cache/store/test_crashes.py::test_every_call[used-middle]",
    *(
        f"tests/contract/test_contract.py::test_equal_to_torch[{case}"
        for case in (
            "lazy-lazy_sampler_torch",
            "lifetime-kept_and_changed_batches",
            "random-counting_with_workers",
        )
    ),
    "tests/faults/test_bad_samples.py::TestLeaveOut::test_holds_in_a_moved_loader_that_comes_back[drawn-skip]",
    "tests/faults/test_deaths.py::TestWorkers::test_at_random",
    "tests/faults/test_leaks.py::test_iterators_left_half_way[elastic]",
    "tests/faults/test_memory.py::test_a_worker_killed",
    "tests/faults/test_planted.py::test_no_planted_mistake_reaches_a_program[one of each module",
    *(
        f"tests/run/test_library.py::test_a_resumed_iteration_goes_on_as_the_uninterrupted_one[edges-{loader}]"
        for loader in ("shuffled", "pinned", "stream")
    ),
    "tests/scale/test_job.py::test_items_that_vary_do_not_make_it_flap[0]",
)
"""Representatives that lie among those."""


def is_exhaustive(test: str) -> bool:
    """Whether a test is left to ``make test-all``, by its id."""
    return any(_names(line, test) for line in EXHAUSTIVE) and not test.startswith(STAYS)


def is_forking(test: str) -> bool:
    """Whether a test is run in a process with others that fork data workers, by its id."""
    return test.startswith(FORKING)


@cache
def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(re.escape(line).replace(r"\*", ".*"))


def _names(line: str, test: str) -> bool:
    return _pattern(line).match(test) is not None


def unused(tests: Iterable[str]) -> list[str]:
    """Lines of the tables above that name no test of a list, among those whose files are in it."""
    tests = list(tests)
    files = {test.partition("::")[0] for test in tests}
    lines = [line for line in (*EXHAUSTIVE, *STAYS) if line.partition("::")[0] in files]
    return [line for line in lines if not any(_names(line, test) for test in tests)]


def may_match(path: Path, expression: str) -> bool:
    """Whether a file may have tests for which an expression of marks is true.

    It is found in the file's text, which costs nothing beside importing it: marks in ``pytestmark`` hold for all of its
    tests, others for some. An expression with other names than :data:`KINDS` is not understood, and may be true.
    """
    if not path.exists():
        return False
    if not expression or set(re.findall(r"\w+", expression)) - {*KINDS, "not", "and", "or"}:
        return True
    always, sometimes = _marks_of(path)
    if is_forking(str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""):
        always |= {"forking"}
    return any(
        eval(expression, {"__builtins__": {}}, {name: name in always or name in some for name in KINDS})
        for count in range(len(sometimes) + 1)
        for some in itertools.combinations(sorted(sometimes), count)
    )


@cache
def _marks_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    text = path.read_text(encoding="utf-8")
    shared = "".join(re.findall(r"^pytestmark = (\[.*?\]|.*?)$", text, re.MULTILINE | re.DOTALL))
    always = frozenset(re.findall(r"mark\.(\w+)", shared)) & {*KINDS}
    sometimes = (frozenset(re.findall(r"mark\.(\w+)", text)) & {*KINDS}) - always
    if any(str(path).endswith(line.partition("::")[0]) for line in EXHAUSTIVE):
        sometimes |= {"exhaustive"}
    return always, sometimes
