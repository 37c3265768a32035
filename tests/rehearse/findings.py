"""Findings that break, cost or mislead a run on 8 to 800 GPUs, with the tests that notice each without a GPU."""

FINDINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "C1": (
        "Engines of several devices end at their start where they have expandable segments.",
        (
            "rehearse/test_cluster.py::test_a_table_that_gives_engines_expandable_segments_breaks_the_command",
            "rehearse/test_engine.py::test_an_engine_on_several_devices_does_not_start_in_the_trainers_environment",
            "cluster/test_environment.py::test_an_engine_has_plain_segments_where_its_node_asks_for_expandable_ones",
        ),
    ),
    "C2": (
        "vLLM's record of experts on a GPU is a row shorter than the trainer takes, which ends the first step.",
        (
            "rollout/test_output_contract.py::test_outputs_of_the_runner_for_gpus_have_the_form_that_engines_read",
            "rollout/test_routing.py::test_a_record_of_other_lengths_is_refused",
        ),
    ),
    "C3": (
        "Nodes cannot join a head whose user has a token of Ray's, which any earlier run leaves.",
        (
            "launcher/test_slurm_job.py::test_real_nodes_join_with_a_token_and_none_without",
            "launcher/test_launch.py::test_machines_of_ones_own_get_the_token_that_their_head_asks_for",
        ),
    ),
    "C4": (
        "The page of clusters offers a way of new weights that the plan refuses.",
        (
            "plan/test_check.py::"
            "test_the_page_of_clusters_names_experiments_for_its_gpus_that_fit_and_no_setting_that_does_not",
        ),
    ),
    "C5": (
        "The page of clusters starts an experiment for other GPUs than it names.",
        (
            "plan/test_check.py::"
            "test_the_page_of_clusters_names_experiments_for_its_gpus_that_fit_and_no_setting_that_does_not",
            "plan/test_plan.py::test_the_costs_of_a_clusters_commands_are_the_plans",
        ),
    ),
    "P1": (
        "Writing an evaluation holds the driver's loop for minutes and takes its memory.",
        ("store/test_completions.py::test_a_token_of_an_evaluation_costs_the_driver_no_python_object",),
    ),
    "P2a": (
        "A node that cannot join is waited for as long as an engine may take to start.",
        (
            "launcher/test_slurm_job.py::test_a_node_that_cannot_join_is_named_within_seconds_and_nothing_starts",
            "launcher/test_slurm_job.py::test_a_node_that_never_joins_ends_the_job_at_the_deadline",
            "launcher/test_networks.py::test_a_node_whose_network_is_cut_is_not_waited_for_without_end",
        ),
    ),
    "P2b": (
        "The head's address is a loopback, at which no other node finds it.",
        (
            "launcher/test_slurm_job.py::test_a_head_that_nobody_can_reach_is_refused",
            "launcher/test_networks.py::test_nodes_of_two_networks_are_one_cluster",
        ),
    ),
    "P2c": (
        "Slurm ends the job with a lost node, and a job that is queued again does not resume its run.",
        (
            "launcher/test_launch.py::test_a_job_has_the_runs_devices_and_the_time_for_a_step_and_a_checkpoint",
            "launcher/test_slurm_job.py::test_a_requeued_job_resumes_its_run",
            "launcher/test_slurm_job.py::test_a_lost_node_is_taken_back_while_the_run_goes_on",
        ),
    ),
    "P2d": (
        "A job gets one core and little memory on each node.",
        ("launcher/test_launch.py::test_a_job_has_the_runs_devices_and_the_time_for_a_step_and_a_checkpoint",),
    ),
    "P3": (
        "Plan and simulator disagree about a step: weights on their way, tensor parallelism, uneven experts.",
        ("plan/test_simulated.py::test_a_plans_step_is_the_simulators_without_evaluations",),
    ),
    "P4": (
        "Engines with chunked attention are slower than planned.",
        ("plan/test_plan.py::test_an_engine_whose_attention_is_chunked_takes_two_milliseconds_more_a_token",),
    ),
    "P5": (
        "An engine starts more sequences than its cache holds, and computes much again without a word.",
        (
            "plan/test_preemption.py::test_an_engine_of_vllm_computes_nearly_as_many_tokens_again",
            "plan/test_preemption.py::test_a_plan_says_how_many_sequences_to_start_instead",
        ),
    ),
    "P6": (
        "Records of experts go through the driver and into checkpoints, gigabytes a step.",
        (
            "cluster/test_shards.py::test_what_the_driver_holds_of_a_completion_and_its_record_is_small",
            "cluster/test_shards.py::test_a_checkpoint_leaves_out_records_that_lie_elsewhere_and_keeps_the_others",
        ),
    ),
    "P7": (
        "Hours of all devices are at risk between two checkpoints.",
        ("plan/test_plan.py::test_checkpoints_take_a_copy_every_hour_on_any_number_of_devices",),
    ),
    "P8": (
        "gloo takes the interface of the host's name, at which no other node finds it.",
        (
            "cluster/test_interfaces.py::test_gloo_takes_the_interface_that_is_named",
            "cluster/test_interfaces.py::test_the_interface_is_the_one_that_holds_the_address",
        ),
    ),
    "P9": (
        "The first step, with every mistake in it, waits for the whole evaluation of the base model.",
        ("run/test_loop.py::test_a_step_that_cannot_be_taken_is_noticed_before_the_first_evaluation",),
    ),
    "P10": (
        "Plan and rehearsal judge a setting differently that the rehearsal left out.",
        (
            "rehearse/test_trainer.py::"
            "test_an_optimizer_on_the_host_takes_no_memory_of_the_device_and_is_not_called_rehearsed",
        ),
    ),
    "Under-counted": (
        "A device is planned with less memory than its driver reports, and the cache stays small.",
        (
            "plan/test_check.py::test_of_a_device_in_the_table_the_smaller_of_its_memories_counts",
            "plan/test_plan.py::test_the_placements_of_the_docs_are_the_plans",
        ),
    ),
}
"""Number of the finding → what goes wrong, and what notices it."""
