"""What the contract promises across jobs, and a group of stores promises on each member only.

Every other test of the suite holds for a group as it does for one store; `stores/group/store.py` says so to its users.
"""

ORDER = """
    test_500_leases_in_one_call
    test_a_batch_is_delivered_completely
    test_an_unused_share_goes_to_the_others
    test_a_strict_queue_ignores_quotas
    test_a_strict_queue_serves_by_priority_alone
    test_each_delivery_carries_its_own
    test_jobs_of_one_push_after_an_end_in_the_same_millisecond
    test_jobs_that_expire_in_the_same_millisecond_end_by_id
    test_leases_come_back_earliest_first
    test_unused_slots_go_to_the_highest_priority_first
    test_no_quotas_is_strict_priority
    test_priority_then_due_at_then_id
    test_quotas_are_taken_high_normal_low
    test_quotas_beyond_the_limit_are_cut
    test_random_sequences_on_jobs
    test_several_asks_are_served_one_after_the_other
    test_the_oldest_go_first
    test_they_are_delivered_in_their_old_order
    test_slots_beyond_the_quotas_are_filled_by_priority
    test_within_a_millisecond_ids_decide_by_code_point
"""
BOUNDS = """
    test_500_in_one_call_by_default
    test_a_call_ends_at_its_bound
    test_a_call_ends_at_its_bound_and_reports_more
    test_a_call_ends_at_its_bound_of_bytes
    test_a_call_ends_at_its_bound_of_jobs
    test_a_job_that_does_not_fit_in_the_step_waits_for_the_next
    test_attributes_count_against_the_bytes
    test_a_limit_beyond_the_bound_ends_at_the_bound
    test_a_limit_holds
    test_a_limit_holds_over_all_queues_and_the_answer_reports_more
    test_empty_bodies_do_not_count_against_the_bytes
    test_expired_jobs_count_against_the_scanned_jobs
"""
ALL_OR_NOTHING = """
    test_a_refused_request_changes_nothing_and_its_neighbours_go_on
    test_a_request_that_does_not_fit_is_refused_completely
    test_the_first_refusal_wins
"""
CAPS_AND_MARKS = """
    test_a_full_queue_refuses_new_jobs
    test_a_mismatch_does_not_fail_its_neighbours
    test_a_refused_request_sets_no_mark
    test_jobs_in_every_state_count
"""
THE_GROUPS_OWN_RECORD = """
    test_a_record_that_comes_again_is_not_among_the_deleted
    test_following_changes_gives_all_records
    test_no_such_record
    test_ping_returns_the_kind_and_the_time
    test_random_sequences_on_the_registry
    test_what_changed_since
"""

NOT_IN_GROUPS = frozenset("".join([ORDER, BOUNDS, ALL_OR_NOTHING, CAPS_AND_MARKS, THE_GROUPS_OWN_RECORD]).split())
