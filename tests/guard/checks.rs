//! The assertions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use auditstream::protocol::{
    CloseCode, Entry, EntryFlags, Frame, Message, NameFilter, SegmentRef, Subscription, TableName,
    decode_frame,
};
use auditstream::sender::{Blocked, SEQUENCE_UPDATE_PERIOD, Stopped, TurnEnd};
use auditstream::store::{AuditLog, MemoryStore};
use bytes::BytesMut;

use super::{BUDGET, Design, Worker, closed_by_peer, ensure, jain, log, segments, unit};

const LOOK: Duration = Duration::from_nanos(100);

/// Ten thousand entries of 100 bytes cost less than the budget on this clock, so they cause no yield.
pub(crate) fn no_yield_below_the_budget(design: Design) -> Result<(), String> {
    let log = log(10_000, 10, |wanted, _, n| Entry::put(wanted, format!("k{n}"), vec![1; 100]));
    let mut worker = Worker::new(design, LOOK);
    worker.join(&log, Subscription::all());
    worker.run_until_idle(false);
    let sent = worker.senders.members[0].sent();
    assert_eq!(sent, 10_000, "the check itself: everything is sent");
    if design.policy == auditstream::sender::YieldPolicy::Budget {
        assert!(
            worker.seen.worked < BUDGET,
            "the check itself: {:?} is below the budget",
            worker.seen.worked
        );
    }
    ensure(worker.seen.yields == 0, || format!("{} yields for 10,000 entries", worker.seen.yields))
}

/// Over a long backlog, yields are work divided by the budget.
pub(crate) fn one_yield_per_budget(design: Design) -> Result<(), String> {
    let log = segments(100);
    let mut worker = Worker::new(design, LOOK);
    for _ in 0..4 {
        worker.join(&log, Subscription::all());
    }
    worker.run_until_idle(false);
    let budgets = worker.seen.worked.as_nanos() / BUDGET.as_nanos();
    assert!(budgets > 10, "the check itself: {budgets} budgets of work");
    let yields = u128::from(worker.seen.yields);
    // Each turn overshoots by a part of a unit, so there are a few turns fewer than budgets.
    ensure(yields <= budgets && yields * 100 >= budgets * 90, || {
        format!("{yields} yields for {budgets} budgets of work")
    })
}

/// One sender whose socket blocks and clears all the time does not stretch the turn of the others.
pub(crate) fn no_turn_beyond_the_budget(design: Design) -> Result<(), String> {
    let log = segments(60);
    let mut worker = Worker::new(design, LOOK);
    for _ in 0..4 {
        worker.join(&log, Subscription::all());
    }
    let flapping = worker.join(&log, Subscription::all());
    worker.member(flapping).flaps_after = Some(3000);
    worker.member(flapping).sink.room = 3000;
    worker.run_until_idle(false);
    let longest = worker.seen.longest_turn;
    ensure(longest <= BUDGET + unit(LOOK), || format!("a turn of {longest:?}, the budget is {BUDGET:?}"))
}

pub(crate) fn equal_shares_for_4(design: Design) -> Result<(), String> {
    equal_shares(design, 4, 120)
}

pub(crate) fn equal_shares_for_64(design: Design) -> Result<(), String> {
    equal_shares(design, 64, 60)
}

pub(crate) fn equal_shares_for_1000(design: Design) -> Result<(), String> {
    equal_shares(design, 1000, 60)
}

/// Senders with the same work: Jain >= 0.99, the slowest at 0.95 of the mean at least.
fn equal_shares(design: Design, senders: usize, backlog: usize) -> Result<(), String> {
    let log = segments(backlog);
    let mut worker = Worker::new(design, LOOK);
    for _ in 0..senders {
        worker.join(&log, Subscription::all());
    }
    // Two thirds of the backlog: nobody has finished yet if the shares are equal.
    let work = Duration::from_micros(66) * (senders * backlog * 2 / 3) as u32;
    while worker.seen.worked < work && worker.turn() == TurnEnd::Yield {}
    let shares: Vec<f64> = worker.senders.members.iter().map(|member| member.sent() as f64).collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let slowest = shares.iter().copied().fold(f64::MAX, f64::min) / mean;
    let index = jain(&shares);
    ensure(index >= 0.99 && slowest >= 0.95, || {
        format!("{senders} senders: Jain {index:.3}, the slowest has {slowest:.3} of the mean")
    })
}

/// One sender only skips, one has entries of 128 KiB, the rest small ones: equal shares of time, Jain >= 0.95.
pub(crate) fn equal_time_for_unequal_work(design: Design) -> Result<(), String> {
    let look = Duration::from_micros(8);
    let skipped = log(60_000, 100, |wanted, _, n| {
        Entry::put(wanted, format!("k{n}"), vec![1; 8]).marked(EntryFlags::LOCAL_ONLY)
    });
    let large = log(300, 1, |wanted, _, n| Entry::put(wanted, format!("k{n}"), vec![1; 128 * 1024]));
    let small = segments(400);
    let mut worker = Worker::new(design, look);
    worker.join(&skipped, Subscription::all());
    worker.join(&large, Subscription::all());
    for _ in 0..3 {
        worker.join(&small, Subscription::all());
    }
    // Each has 25 ms of work at least.
    while worker.seen.worked < Duration::from_millis(100) && worker.turn() == TurnEnd::Yield {}
    let shares: Vec<f64> = worker.senders.members.iter().map(|member| member.served.as_secs_f64()).collect();
    let index = jain(&shares);
    ensure(index >= 0.95, || format!("Jain {index:.3} of the time: {shares:.4?}"))
}

/// Longer than twenty periods of skipping, entry by entry: the loop runs every budget, a position comes every period.
pub(crate) fn skip_run_progress(design: Design) -> Result<(), String> {
    let look = Duration::from_millis(1);
    let log = log(110_000, 100, |wanted, _, n| {
        Entry::put(wanted, format!("k{n}"), vec![1; 8]).marked(EntryFlags::LOCAL_ONLY)
    });
    let mut worker = Worker::new(design, look);
    let id = worker.join(&log, Subscription::all());
    worker.member(id).sink.captured = Some(Vec::new());
    let mut arrivals = Vec::new();
    while worker.turn() == TurnEnd::Yield {
        let now = worker.clock.peek();
        let updates = worker.member(id).session.stats().sequence_updates;
        arrivals.resize(updates as usize, now);
    }
    let longest = worker.seen.longest_turn;
    ensure(longest <= BUDGET + unit(look), || format!("the loop did not run for {longest:?}"))?;
    ensure(arrivals.len() >= 20, || {
        format!("{} positions in a run of more than 20 periods", arrivals.len())
    })?;
    let slack = (BUDGET + unit(look)) * 2;
    for pair in arrivals.windows(2) {
        let gap = pair[1].since(pair[0]);
        ensure(gap <= SEQUENCE_UPDATE_PERIOD + slack, || format!("{gap:?} between two positions"))?;
    }
    Ok(())
}

/// Skip runs of 1, 2, 100 and 10,000 entries, for a peer that had data and for one that never has: within two periods the
/// peer holds the position at the end, and then nothing repeats.
pub(crate) fn skip_run_end(design: Design) -> Result<(), String> {
    for (length, with_data) in [(1, false), (2, true), (100, false), (100, true), (10_000, true)] {
        let log = log(length + 10, 1, |wanted, other, n| {
            Entry::put(if n < 10 && with_data { wanted } else { other }, format!("k{n}"), vec![1; 8])
        });
        let mut worker = Worker::new(design, LOOK);
        let only = NameFilter::Include(BTreeSet::from([TableName::new("wanted").unwrap()]));
        let id = worker.join(&log, Subscription::new(only, NameFilter::All, None).unwrap());
        worker.run_until_idle(true);
        let at = worker.clock.peek();
        let position = worker.member(id).session.position().boundary.sequence;
        ensure(position == log.head(), || {
            format!("{length} skipped: position {position}, head {}", log.head())
        })?;
        let limit = SEQUENCE_UPDATE_PERIOD * 2;
        ensure(at.as_nanos() <= limit.as_nanos() as u64, || {
            format!("{length} skipped: the position came at {at:?}")
        })?;
        let updates = worker.member(id).session.stats().sequence_updates;
        ensure(updates <= 1, || format!("{length} skipped: {updates} sequence updates"))?;
        ensure(worker.turn() == TurnEnd::Wait { deadline: None }, || "something is still due".to_owned())?;
    }
    Ok(())
}

/// Whatever carries position k comes after every eligible entry up to k, also when the position is due in the middle of a
/// frame that is being filled.
pub(crate) fn positions_after_entries(design: Design) -> Result<(), String> {
    let log = log(4000, 3, |wanted, other, n| {
        Entry::put(if n % 2 == 0 { wanted } else { other }, format!("k{n}"), vec![1; 8])
    });
    let mut worker = Worker::new(design, Duration::from_millis(20));
    let only = NameFilter::Include(BTreeSet::from([TableName::new("wanted").unwrap()]));
    let id = worker.join(&log, Subscription::new(only, NameFilter::All, None).unwrap());
    worker.member(id).sink.captured = Some(Vec::new());
    worker.run_until_idle(true);
    let captured = worker.member(id).sink.captured.take().unwrap_or_default();
    let mut input = BytesMut::from(&captured[..]);
    let mut seen = 0;
    while let Some(frame) = decode_frame(&mut input).map_err(|error| error.to_string())? {
        let position = match frame {
            Frame::Segment(frame) => {
                let segment = SegmentRef::parse(&frame).map_err(|error| error.to_string())?;
                segment.verify().map_err(|error| error.to_string())?;
                seen += u64::from(segment.header().entries);
                segment.header().end.sequence
            }
            Frame::Message(Message::SequenceUpdate(boundary)) => boundary.sequence,
            _ => continue,
        };
        // Entries 1, 3, 5, ... are eligible.
        let owed = position.get().div_ceil(2);
        ensure(seen >= owed, || {
            format!("position {position} after {seen} entries, {owed} are eligible up to it")
        })?;
    }
    ensure(seen == 2000, || format!("{seen} of 2,000 eligible entries arrived"))
}

/// A sender without room waits although the budget is not spent, is not called again, and holds one segment at most.
pub(crate) fn backpressure_waits(design: Design) -> Result<(), String> {
    let log = segments(20);
    let mut worker = Worker::new(design, LOOK);
    let id = worker.join(&log, Subscription::all());
    worker.member(id).sink.room = 100_000;
    let end = worker.turn();
    ensure(end == TurnEnd::Wait { deadline: None }, || format!("{end:?} while the socket is full"))?;
    ensure(worker.seen.worked < BUDGET, || format!("{:?} of work without room", worker.seen.worked))?;
    ensure(worker.member(id).stopped == Some(Stopped::Blocked(Blocked::Socket)), || {
        "it is not blocked".to_owned()
    })?;
    let pending = worker.member(id).session.pending_bytes();
    ensure(pending <= 256 * 1024, || format!("a blocked sender holds {pending} bytes"))?;
    let quanta = worker.ring.stats().quanta;
    worker.turn();
    ensure(worker.ring.stats().quanta == quanta, || "it was served although nothing woke it".to_owned())?;
    worker.member(id).sink.room = usize::MAX;
    worker.senders.woken.push(id);
    worker.run_until_idle(false);
    let sent = worker.member(id).sent();
    ensure(sent == 20 * 64, || format!("{sent} entries after the room came back"))?;
    ensure(worker.seen.yields == 0, || format!("{} yields below the budget", worker.seen.yields))
}

/// A sender that waits for room, for a resume or for a commit is released by a close.
pub(crate) fn close_releases(design: Design) -> Result<(), String> {
    type Block = fn(&mut Worker, &Arc<MemoryStore>) -> Stopped;
    let waits: [Block; 3] = [
        |worker, _| {
            worker.senders.members[0].sink.room = 1000;
            Stopped::Blocked(Blocked::Socket)
        },
        |worker, _| {
            worker.senders.members[0].session.on_message(Message::Pause);
            Stopped::Blocked(Blocked::Paused)
        },
        |_, _| Stopped::CaughtUp { deadline: None },
    ];
    for block in waits {
        let log = segments(5);
        let mut worker = Worker::new(design, LOOK);
        let id = worker.join(&log, Subscription::all());
        let wait = block(&mut worker, &log);
        worker.run_until_idle(false);
        ensure(worker.member(id).stopped.as_ref() == Some(&wait), || format!("it does not wait: {wait:?}"))?;
        worker
            .member(id)
            .session
            .on_message(Message::Close { code: CloseCode::Normal, text: "bye".to_owned() });
        worker.senders.woken.push(id);
        worker.turn();
        ensure(closed_by_peer(worker.member(id)), || format!("a close does not release {wait:?}"))?;
    }
    Ok(())
}
