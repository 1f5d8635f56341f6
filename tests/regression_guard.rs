//! The guard: what must never be lost again, counted and never timed.
//!
//! Every assertion is a function of a [`Design`]. The product has to pass all of them; each planted design has to fail
//! the one that is for it. A check that has never failed proves nothing, so both halves are tests for ever.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guard;

use auditstream::sender::{Plant, YieldPolicy};
use guard::{Check, Design};

const PRODUCT: Design = Design { policy: YieldPolicy::Budget, ring: None, session: None };

const fn policy(policy: YieldPolicy) -> Design {
    Design { policy, ..PRODUCT }
}

const fn ring(plant: Plant) -> Design {
    Design { ring: Some(plant), ..PRODUCT }
}

const fn session(plant: Plant) -> Design {
    Design { session: Some(plant), ..PRODUCT }
}

#[track_caller]
fn passes(check: Check) {
    if let Err(why) = check(PRODUCT) {
        panic!("the product breaks the guard: {why}");
    }
}

#[track_caller]
fn fails(check: Check, design: Design) {
    assert!(check(design).is_err(), "the guard does not see the fault planted in {design:?}");
}

#[test]
fn ten_thousand_small_entries_below_the_budget_cause_no_yield() {
    passes(guard::no_yield_below_the_budget);
    fails(guard::no_yield_below_the_budget, policy(YieldPolicy::PerRecord));
}

#[test]
fn each_budget_of_work_causes_exactly_one_yield_for_all_senders() {
    passes(guard::one_yield_per_budget);
    fails(guard::one_yield_per_budget, policy(YieldPolicy::PerRecord));
    fails(guard::one_yield_per_budget, policy(YieldPolicy::PerSender));
}

#[test]
fn no_turn_is_longer_than_the_budget_and_one_unit_while_a_sender_flaps() {
    passes(guard::no_turn_beyond_the_budget);
    fails(guard::no_turn_beyond_the_budget, policy(YieldPolicy::PerSender));
    fails(guard::no_turn_beyond_the_budget, ring(Plant::RefillOnAnyWait));
}

#[test]
fn equal_senders_get_equal_shares() {
    passes(guard::equal_shares_for_4);
    passes(guard::equal_shares_for_64);
    passes(guard::equal_shares_for_1000);
    fails(guard::equal_shares_for_4, ring(Plant::NaiveSharedBudget));
    fails(guard::equal_shares_for_64, ring(Plant::NaiveSharedBudget));
    fails(guard::equal_shares_for_1000, ring(Plant::NaiveSharedBudget));
}

#[test]
fn senders_with_unequal_work_get_equal_shares_of_time() {
    passes(guard::equal_time_for_unequal_work);
    fails(guard::equal_time_for_unequal_work, ring(Plant::ByteDeficit));
}

#[test]
fn an_endless_skip_run_lets_the_loop_run_and_reports_a_position_every_period() {
    passes(guard::skip_run_progress);
    fails(guard::skip_run_progress, session(Plant::NoSequenceUpdate));
}

#[test]
fn a_skip_run_of_any_length_ends_with_its_position_sent_once() {
    passes(guard::skip_run_end);
    fails(guard::skip_run_end, session(Plant::NoSequenceUpdate));
}

#[test]
fn a_position_never_overtakes_an_entry() {
    passes(guard::positions_after_entries);
    fails(guard::positions_after_entries, session(Plant::EarlyPosition));
    fails(guard::positions_after_entries, session(Plant::DropEntry));
}

#[test]
fn backpressure_waits_below_the_budget_without_a_yield() {
    passes(guard::backpressure_waits);
    fails(guard::backpressure_waits, policy(YieldPolicy::PerRecord));
}

#[test]
fn close_releases_every_wait() {
    passes(guard::close_releases);
}

#[test]
fn on_a_real_runtime_ten_thousand_small_entries_below_the_budget_cause_no_yield() {
    passes(guard::runtime_no_yield_below_the_budget);
    fails(guard::runtime_no_yield_below_the_budget, policy(YieldPolicy::PerRecord));
}

#[test]
fn on_a_real_runtime_each_budget_is_one_yield_and_lets_io_and_timers_run() {
    passes(guard::runtime_one_yield_per_budget);
    fails(guard::runtime_one_yield_per_budget, policy(YieldPolicy::PerRecord));
    fails(guard::runtime_one_yield_per_budget, policy(YieldPolicy::PerSender));
}
