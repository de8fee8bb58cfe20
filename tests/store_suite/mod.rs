//! The promises of the store port, one function each, run unchanged on both databases.
//! What a promise needs from a database beyond the port is `Database`; opening one is left to each store's crate.
//!
//! A store's crate instantiates the suite with `store_suite!(fresh);` where `fresh` is an
//! `async fn() -> std::sync::Arc<dyn Database>` that makes an empty, migrated database.

#![allow(clippy::unwrap_used, reason = "a promise that cannot be checked is broken")]

mod world;

pub mod accepting;
pub mod access;
pub mod acting;
pub mod auditing;
pub mod capping;
pub mod claiming;
pub mod expiring;
pub mod finishing;
pub mod keeping;
pub mod listing;
pub mod moving;
pub mod operational;
pub mod ordering;
pub mod purging;
pub mod random;
pub mod rating;
pub mod reading;
pub mod registry;
pub mod resending;
pub mod routing;
pub mod sandboxing;
pub mod scale;
pub mod suppressing;
pub mod sweeping;
pub mod switching;
pub mod telling;

use std::sync::Arc;

use async_trait::async_trait;
use tidings_core::store::Store;
use tidings_core::time::Timestamp;
use uuid::Uuid;

pub use world::{World, accept_on, accepted, answered, at, claim_on, destination, email, unique_id};

/// An empty, migrated database of one promise.
#[async_trait]
pub trait Database: Send + Sync {
    /// The handles on it, one for each process: one on SQLite, one or four on PostgreSQL.
    fn stores(&self) -> Vec<Arc<dyn Store>>;

    /// Runs a statement past the port, as somebody at a prompt would; returns the number of rows.
    async fn execute(&self, sql: &str) -> Result<u64, String>;

    /// The first column of the one row that `sql` selects, such as a `count(*)`.
    async fn number(&self, sql: &str) -> i64;

    /// Another empty, migrated store of this kind.
    async fn another(&self) -> Arc<dyn Store>;

    /// Every column of every table, partitions left out.
    async fn columns(&self) -> Vec<(String, String)>;

    /// Lets words into `suppressions` that this schema does not know, as the schema of a newer binary would.
    async fn allow_any_scope(&self);

    /// A literal for an id.
    fn id(&self, id: Uuid) -> String;

    /// A literal for bytes.
    fn bytes(&self, bytes: &[u8]) -> String;

    /// A literal for an instant.
    fn instant(&self, at: Timestamp) -> String;
}

/// Makes one test of every promise.
#[macro_export]
macro_rules! store_suite {
    ($fresh:path) => {
        $crate::store_suite! { @each $fresh;
            accepting::an_accepted_notification_is_found_by_key_and_waits_in_the_queue,
            accepting::a_key_that_is_held_names_its_holder_and_writes_nothing,
            accepting::accepts_of_one_key_at_once_have_one_winner,
            accepting::the_same_key_twice_in_a_batch_is_taken_once,
            accepting::one_bad_item_never_hurts_its_batch_mates,
            accepting::a_bad_item_does_not_take_the_key_from_its_batch_mate,
            accepting::tenants_and_modes_do_not_share_keys,
            accepting::a_notification_is_written_with_all_its_deliveries,
            accepting::batches_with_the_same_keys_in_opposite_order_both_succeed,
            accepting::the_same_notification_again_is_held_by_itself,
            accepting::nothing_is_stored_without_a_deadline,
            expiring::a_key_is_free_again_thirty_days_after_its_last_delivery_is_settled,
            expiring::the_key_of_an_open_notification_is_never_free,
            expiring::an_expired_key_in_a_batch_hurts_nobody_else,
            expiring::of_those_who_reuse_a_key_at_once_one_wins,
            expiring::a_key_that_is_purged_at_this_moment_is_taken,
            claiming::a_row_is_claimed_once_by_any_number_of_claimers,
            claiming::a_claimed_row_names_its_owner_account_and_lease,
            claiming::a_row_waits_until_it_is_due,
            claiming::rows_of_a_tenant_go_out_oldest_first,
            claiming::a_lower_id_that_is_committed_later_is_found,
            claiming::a_small_tenant_is_in_the_first_claim_beside_a_huge_one,
            claiming::one_free_slot_at_a_time_goes_round_all_tenants,
            claiming::every_tenant_of_a_long_ring_is_reached,
            claiming::lanes_share_the_capacity_in_the_order_of_the_plan,
            claiming::a_suppressed_address_is_not_called,
            claiming::a_suppression_between_two_attempts_has_the_last_word,
            claiming::a_suppression_reaches_as_far_as_it_says,
            claiming::a_suppression_of_an_unknown_scope_stops_everybody,
            claiming::an_overdue_row_expires_when_it_is_judged,
            claiming::rows_of_a_disabled_tenant_wait,
            claiming::a_newer_schema_version_is_left_alone,
            claiming::a_row_with_an_unknown_word_is_stepped_over_by_a_claim,
            claiming::a_claim_without_room_writes_nothing,
            routing::a_row_goes_by_an_account_that_may_send_as_its_author,
            routing::who_refused_a_message_is_not_asked_again_in_its_generation,
            routing::rows_that_nobody_may_send_stand_aside_for_those_behind,
            routing::a_tenant_whose_own_account_takes_nothing_holds_up_nobody_else,
            finishing::an_acceptance_ends_the_delivery_and_is_recorded_with_its_attempt,
            finishing::a_temporary_refusal_waits_for_its_next_try,
            finishing::used_up_tries_end_in_the_list_of_dead_letters,
            finishing::an_outcome_is_written_once,
            finishing::reports_of_one_attempt_at_once_are_written_once,
            finishing::a_late_result_of_the_same_epoch_still_decides,
            finishing::a_stale_epoch_moves_nothing_and_is_recorded,
            finishing::a_late_acceptance_beside_a_second_one_is_a_duplicate,
            finishing::a_late_acceptance_stops_the_resend_that_waits,
            finishing::the_database_refuses_a_second_acceptance_of_a_generation,
            finishing::an_outcome_of_an_unknown_delivery_is_gone,
            finishing::a_call_that_was_not_started_is_not_counted,
            finishing::a_nul_in_the_words_of_a_provider_does_not_hold_up_the_outcome,
            finishing::the_fate_of_copies_is_kept_over_attempts,
            acting::a_cancel_stops_what_waits,
            acting::a_cancel_beside_a_running_call_forbids_the_next,
            acting::a_cancel_and_a_claim_at_once_have_one_winner,
            acting::a_notification_is_cancelled_as_a_whole,
            acting::a_message_of_a_line_is_not_moved,
            acting::of_two_reschedules_of_one_version_one_wins,
            acting::a_rescheduled_message_waits_for_its_new_time,
            resending::a_dead_delivery_is_sent_again,
            resending::what_was_taken_is_sent_again_as_the_next_generation,
            resending::an_unknown_delivery_is_sent_again_by_name_only,
            resending::a_resend_to_an_address_that_is_suppressed_now_is_not_sent,
            resending::what_is_gone_or_long_over_is_not_sent_again,
            resending::a_dead_letter_is_replayed_three_times,
            acting::an_operator_settles_an_ambiguous_delivery,
            acting::cancel_and_resolve_work_on_orphans,
            acting::an_operator_settles_an_unknown_delivery,
            resending::dead_letters_are_listed_until_they_are_settled,
            acting::each_act_of_a_batch_has_its_own_answer,
            acting::the_audit_log_tells_who_did_what,
            auditing::a_store_that_only_the_port_wrote_is_clean,
            auditing::each_broken_relation_is_named,
            sweeping::an_expired_lease_is_perhaps_sent,
            sweeping::a_renewed_lease_holds_and_lost_ones_are_named,
            sweeping::a_waiting_row_expires_at_its_deadline,
            sweeping::a_row_with_an_unresolved_call_expires_into_unknown,
            sweeping::the_end_of_a_hold_resends_once_and_then_gives_up,
            sweeping::a_lost_lease_with_a_recorded_acceptance_is_accepted,
            sweeping::a_row_with_an_unknown_word_is_stepped_over_by_every_sweep,
            sweeping::a_sweep_moves_no_more_than_its_limit,
            sweeping::sweepers_at_once_move_each_row_once,
            reading::a_notification_is_read_back_as_it_was_accepted,
            reading::attempts_are_read_in_order,
            reading::an_ended_delivery_keeps_its_numbers,
            reading::others_see_nothing,
            reading::adapters_get_what_they_need,
            reading::the_next_due_row_of_each_lane_is_known,
            reading::the_lanes_in_which_rows_wait_are_known,
            reading::open_rows_are_counted,
            listing::a_window_is_looked_at_newest_first_and_says_where_it_ended,
            listing::pages_hold_each_row_once_while_others_are_accepted,
            listing::a_window_is_of_its_tenant_and_tells_the_modes_apart,
            listing::facts_for_filters_are_those_of_the_moment,
            listing::a_scan_ends_before_it_holds_too_many_deliveries,
            listing::several_notifications_are_read_as_one_is,
            listing::one_delivery_is_read_by_its_id,
            listing::content_is_read_until_it_is_erased,
            listing::a_suppressed_delivery_names_the_entry,
            listing::a_row_with_an_unknown_word_is_left_out_of_lists,
            registry::a_setting_is_settled_by_one_of_many,
            registry::names_keep_their_numbers,
            registry::names_are_made_once_by_processes_that_start_at_once,
            registry::keys_are_found_by_hash,
            registry::a_key_needs_a_tenant,
            registry::writing_is_proven_by_writing,
            registry::a_schema_that_needs_a_newer_binary_is_refused,
            sandboxing::a_message_of_the_sandbox_is_read_back,
            sandboxing::messages_of_the_sandbox_are_filtered,
            sandboxing::a_sandbox_belongs_to_its_tenant_and_mode,
            sandboxing::the_sandbox_keeps_the_newest_of_each_tenant_and_mode,
            sandboxing::the_same_message_again_is_nothing,
            suppressing::a_suppression_is_there_once_for_each_reason_and_scope,
            suppressing::suppressions_of_one_address_at_once_are_one_row,
            suppressing::suppressions_are_listed_newest_first_by_filter,
            suppressing::a_suppression_is_found_by_each_live_digest,
            suppressing::a_removal_takes_one_reason_and_is_written_down,
            suppressing::a_hard_refusal_suppresses_its_address_at_once,
            suppressing::refusals_of_one_mailbox_are_one_row,
            suppressing::a_hard_refusal_of_a_copy_suppresses_it_and_moves_nothing_else,
            suppressing::a_refusal_that_is_not_about_the_mailbox_suppresses_nobody,
            suppressing::a_sender_scope_stops_its_author_alone,
            access::a_key_is_found_with_its_tenant,
            access::keys_end_when_they_are_followed_or_revoked,
            access::a_tenant_is_disabled_and_enabled_by_name,
            switching::a_switch_is_seen_by_every_process_and_audited,
            switching::paused_rows_keep_their_place_and_stand_in_nobodys_way,
            switching::open_calls_depth_and_age_are_measured,
            telling::an_end_is_told_and_completes_its_notification,
            telling::what_is_still_open_completes_nothing,
            telling::a_notification_completes_with_its_last_delivery_alone,
            telling::deliveries_that_end_at_once_complete_once,
            telling::the_feed_is_read_page_by_page,
            telling::others_see_no_events,
            telling::a_place_before_the_floor_has_expired,
            telling::a_reader_that_pages_while_others_write_misses_nothing,
            telling::sensitive_content_ends_with_its_notification,
            operational::what_happens_to_suppressions_is_told_once,
            operational::a_hard_refusal_tells_its_suppression_and_the_delivery_behind_it,
            operational::refusals_of_one_mailbox_tell_one_suppression,
            operational::a_switch_is_told_when_it_changes_what_goes_out,
            operational::switches_at_once_are_told_in_their_order,
            operational::events_of_the_installation_are_merged_for_who_may_see_them,
            operational::purged_events_of_the_installation_are_never_stepped_over_silently,
            operational::a_reader_of_everything_misses_nothing_while_others_write,
            ordering::deliveries_of_one_key_go_out_one_after_the_other,
            ordering::a_line_belongs_to_its_mode,
            ordering::intakes_of_one_key_at_once_are_numbered_without_gap,
            ordering::order_is_kept_by_any_number_of_claimers,
            ordering::a_follower_that_ends_is_stepped_over,
            ordering::a_lost_head_holds_its_line_until_it_ends,
            ordering::a_stuck_head_lets_its_successor_pass_once,
            ordering::a_head_that_was_never_called_keeps_its_place,
            ordering::of_codes_in_a_stall_the_last_alone_is_sent,
            ordering::of_codes_in_one_batch_the_last_alone_is_sent,
            ordering::a_newer_code_stops_the_resend_of_a_running_one,
            ordering::a_claim_looks_once_more_for_a_newer_one,
            keeping::content_goes_when_its_time_is_over,
            keeping::everything_is_reached_chunk_by_chunk,
            keeping::addresses_go_when_the_key_is_free,
            keeping::records_go_when_nothing_is_expected_of_them,
            keeping::purged_events_are_never_stepped_over_silently,
            keeping::a_window_has_one_run,
            moving::everything_moves_and_goes_on,
            moving::an_import_that_breaks_off_leaves_nothing,
            moving::only_an_empty_store_is_imported_into,
            moving::every_column_moves_or_is_named,
            moving::a_freeze_is_ended_once,
            purging::nothing_that_is_needed_goes_however_often_it_is_purged,
            purging::what_is_opened_again_before_it_is_erased_keeps_its_content,
            purging::a_resend_and_the_wipe_at_once_have_one_winner,
            purging::everything_else_that_grows_has_a_bound,
            capping::units_add_up_to_the_cap_whoever_dies_with_them,
            capping::a_draw_goes_as_far_as_its_bound,
            capping::days_are_counted_apart_and_read_in_order,
            capping::what_is_given_back_may_be_drawn_again,
            capping::a_day_of_another_zone_is_the_same_day,
            rating::callers_at_once_are_given_burst_and_rate,
            rating::slices_add_up_to_the_rate_whoever_dies_with_them,
            rating::buckets_are_drawn_from_apart_and_all_or_nothing,
            rating::a_changed_rate_holds_from_the_next_draw,
            random::no_walk_breaks_a_relation_between_tables,
        }
    };
    (@each $fresh:path; $($module:ident :: $promise:ident),+ $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            let fresh: Option<std::sync::Arc<dyn $crate::store_suite::Database>> = $fresh().await.into();
            let Some(fresh) = fresh else { return };
            let world = $crate::store_suite::World::new(fresh).await;
            $crate::store_suite::$module::$promise(&world).await;
        }
    )+ };
}
