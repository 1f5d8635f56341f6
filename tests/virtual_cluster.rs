//! Whole clusters without sockets, threads or real time: see `auditstream::testing`.
//!
//! `AUDITSTREAM_SEEDS=17..18` runs these seeds instead of the first 200.

use auditstream::sender::{Plant, YieldPolicy};
use auditstream::store::StorePlant;
use auditstream::testing::{Coverage, Fault, LinkState, Oracle, Plan, Planted, run};

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("AUDITSTREAM_SEEDS") else { return 0..200 };
    let (from, to) = text.split_once("..").expect("AUDITSTREAM_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn a_the_same_seed_twice_gives_the_identical_trace() {
    let mut hashes = Vec::new();
    for seed in 0..6 {
        let (first, second) = (run(&Plan::from_seed(seed)), run(&Plan::from_seed(seed)));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert!(!first.trace.is_empty());
        hashes.push(first.trace_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 6, "every seed is a run of its own");
}

#[test]
fn every_oracle_holds_under_every_fault_in_every_seed() {
    let mut coverage = Coverage::default();
    let (mut runs, mut refused, mut yields, mut delivered) = (0, 0, 0, 0);
    for seed in seeds() {
        let report = run(&Plan::from_seed(seed));
        assert!(report.violation.is_none(), "{}", report.explain());
        assert!(report.nodes >= 3 && report.transactions >= 200, "seed {seed} is too small");
        assert!(report.crashes >= 1 && report.cuts >= 1, "seed {seed} has no crash or no cut");
        coverage.add(&report.coverage);
        runs += 1;
        refused += report.refused_other_log;
        yields += report.yields;
        delivered += report.delivered;
    }
    println!(
        "{runs} seeds, {delivered} entries delivered, {yields} yields, {refused} refused as of another log"
    );
    println!("{coverage}");
    if std::env::var("AUDITSTREAM_SEEDS").is_ok() {
        return;
    }
    assert!(refused > 0 && yields > 0);
    for fault in Fault::ALL {
        for state in LinkState::ALL {
            assert!(coverage.count(fault, state) > 0, "{fault:?} never met {state:?}");
        }
    }
}

/// Runs seeds with the fault built in until `oracle` finds it.
fn is_found(planted: Planted, oracle: Oracle) {
    for seed in 0..50 {
        if let Some(violation) = run(&Plan::from_seed(seed).with(planted, oracle)).violation {
            assert_eq!(violation.oracle, oracle);
            println!("{planted:?}: seed {seed}: {violation:?}");
            return;
        }
    }
    panic!("{planted:?} was not found by {oracle:?} within 50 seeds");
}

#[test]
fn a_dropped_entry_is_found_by_o1() {
    is_found(Planted::Sender(Plant::DropEntry), Oracle::Delivery);
}

#[test]
fn a_repeated_entry_is_found_by_o1() {
    is_found(Planted::Sender(Plant::RepeatEntry), Oracle::Delivery);
}

#[test]
fn an_early_position_is_found_by_o2() {
    is_found(Planted::Sender(Plant::EarlyPosition), Oracle::Position);
}

#[test]
fn a_missing_sequence_update_is_found_by_o5() {
    is_found(Planted::Sender(Plant::NoSequenceUpdate), Oracle::Progress);
}

#[test]
fn a_shared_budget_without_shares_is_found_by_o8() {
    is_found(Planted::Sender(Plant::NaiveSharedBudget), Oracle::Fairness);
}

#[test]
fn a_deficit_in_bytes_is_found_by_o8() {
    is_found(Planted::Sender(Plant::ByteDeficit), Oracle::Fairness);
}

#[test]
fn a_refill_on_any_wait_is_found_by_o8() {
    is_found(Planted::Sender(Plant::RefillOnAnyWait), Oracle::TurnLength);
}

#[test]
fn a_private_budget_per_sender_is_found_by_o8() {
    is_found(Planted::Policy(YieldPolicy::PerSender), Oracle::TurnLength);
}

#[test]
fn a_yield_per_record_is_found_by_the_count_of_yields() {
    is_found(Planted::Policy(YieldPolicy::PerRecord), Oracle::Yield);
}

#[test]
fn a_position_before_its_data_is_found_by_the_commit_check() {
    is_found(Planted::Store(StorePlant::PositionBeforeData), Oracle::Committed);
}

#[test]
fn a_transaction_split_over_two_commits_is_found_by_o7() {
    is_found(Planted::Store(StorePlant::SplitTransaction), Oracle::Atomicity);
}

#[test]
fn an_entry_logged_twice_is_found() {
    is_found(Planted::Store(StorePlant::LogDuplicate), Oracle::LoggedOnce);
}

#[test]
fn a_missing_latch_after_a_failed_batch_is_found_by_the_commit_check() {
    is_found(Planted::Store(StorePlant::NoLatch), Oracle::Committed);
}

#[test]
fn a_wider_filter_that_goes_on_where_the_narrower_one_was_is_found_by_o4() {
    is_found(Planted::Sender(Plant::StartAtAnnounced), Oracle::Resume);
}

#[test]
fn a_wider_filter_that_sends_again_what_the_narrower_one_brought_is_found_by_o1() {
    is_found(Planted::Sender(Plant::SendCovered), Oracle::Delivery);
}

#[test]
fn a_position_of_one_filter_that_counts_for_another_is_found_by_the_commit_check() {
    is_found(Planted::Store(StorePlant::CoverEverything), Oracle::Committed);
}

#[test]
fn an_early_acknowledgement_is_found() {
    is_found(Planted::AcknowledgeEarly, Oracle::Acknowledged);
}
