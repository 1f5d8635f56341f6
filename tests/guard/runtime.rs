//! The guard on a real runtime: one `current_thread` runtime holds the worker, an I/O echo over a socket, a timer and a
//! counting task. What is counted are turns: how often each of them ran while the worker had work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use auditstream::clock::{Clock, Moment};
use auditstream::net::{Source, Transport, Worker, WorkerConfig, accept};
use auditstream::protocol::{Frame, Hello, Message, Subscription, decode_frame};
use auditstream::sender::SendConfig;
use auditstream::store::{AuditLog, MemoryStore};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Design, ensure, node};

/// Time that passes only by being looked at, so that the number of yields does not depend on the machine.
struct Ticking {
    nanos: AtomicU64,
    per_look: u64,
}

impl Clock for Ticking {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.nanos.fetch_add(self.per_look, Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000
    }
}

/// What ran beside the worker.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    pub(crate) yields: u64,
    pub(crate) echoes: u64,
    pub(crate) ticks: u64,
    pub(crate) entries: u64,
}

/// Streams the whole log to `peers` peers in this runtime and counts what else got to run.
pub(crate) fn stream(design: Design, log: &Arc<MemoryStore>, peers: usize, per_look: Duration) -> Beside {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let nanos = AtomicU64::new(0);
        let clock: Arc<dyn Clock> = Arc::new(Ticking { nanos, per_look: per_look.as_nanos() as u64 });
        let config = WorkerConfig::default().with_policy(design.policy);
        let config = match design.ring {
            Some(plant) => config.planted(plant),
            None => config,
        };
        let (handle, worker) = Worker::new(config, Arc::clone(&clock));
        let source = Source { node: node("source"), log: log.clone(), clock, send: SendConfig::default() };
        let working = Arc::new(AtomicBool::new(true));
        let echoes = tokio::spawn(echo(Arc::clone(&working)));
        let ticks = tokio::spawn(tick(Arc::clone(&working)));
        let mut reading = Vec::new();
        for peer in 0..peers {
            // A pipe with room for everything: the sender never blocks, so all yields are the budget's.
            let (ours, theirs) = tokio::io::duplex(64 * 1024 * 1024);
            let greeted = tokio::spawn(read_all(ours, format!("peer-{peer}"), log.head().get()));
            let accepted = accept(Transport::io(theirs), &source, Duration::from_secs(30)).await.unwrap();
            handle.add(accepted);
            reading.push(greeted);
        }
        let serving = tokio::spawn(worker.run());
        let mut entries = 0;
        for reading in reading {
            entries += reading.await.unwrap();
        }
        working.store(false, Ordering::Relaxed);
        let yields = handle.stats().ring.turns_spent;
        handle.stop();
        serving.await.unwrap();
        Beside { yields, echoes: echoes.await.unwrap(), ticks: ticks.await.unwrap(), entries }
    })
}

/// A byte to and fro over a real socket: each round needs the I/O driver twice.
async fn echo(working: Arc<AtomicBool>) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut here = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut there, _) = listener.accept().await.unwrap();
    let mut rounds = 0;
    let mut byte = [0];
    while working.load(Ordering::Relaxed) {
        here.write_all(&[1]).await.unwrap();
        there.read_exact(&mut byte).await.unwrap();
        there.write_all(&byte).await.unwrap();
        here.read_exact(&mut byte).await.unwrap();
        rounds += 1;
    }
    rounds
}

/// A timer that is always due.
async fn tick(working: Arc<AtomicBool>) -> u64 {
    let mut ticks = 0;
    while working.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_micros(1)).await;
        ticks += 1;
    }
    ticks
}

/// A peer that reads up to `head` and counts the entries.
async fn read_all(mut stream: tokio::io::DuplexStream, name: String, head: u64) -> u64 {
    let mut greeting = Vec::new();
    Message::Hello(Hello::new(node(&name))).encode(&mut greeting);
    Message::Subscribe { id: 1, subscription: Subscription::all() }.encode(&mut greeting);
    stream.write_all(&greeting).await.unwrap();
    let mut input = BytesMut::new();
    let mut entries = 0;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        while let Some(frame) = decode_frame(&mut input).unwrap() {
            if let Frame::Segment(frame) = frame {
                let segment = auditstream::protocol::SegmentRef::parse(&frame).unwrap();
                entries += u64::from(segment.header().entries);
                if segment.header().end.sequence.get() == head {
                    return entries;
                }
            }
        }
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the stream ended early");
        input.extend_from_slice(&buffer[..count]);
    }
}

/// Ten thousand entries below the budget: no yield.
pub(crate) fn runtime_no_yield_below_the_budget(design: Design) -> Result<(), String> {
    let log = super::log(10_000, 10, |wanted, _, n| {
        auditstream::protocol::Entry::put(wanted, format!("k{n}"), vec![1; 100])
    });
    let beside = stream(design, &log, 1, Duration::from_nanos(100));
    assert_eq!(beside.entries, 10_000, "the check itself: everything arrives");
    ensure(beside.yields == 0, || format!("{} yields for 10,000 entries", beside.yields))
}

/// A long backlog for several senders: a yield for each budget and not more, and the echo and the timer run all along.
pub(crate) fn runtime_one_yield_per_budget(design: Design) -> Result<(), String> {
    let (peers, segments) = (4, 50);
    let log = super::segments(segments);
    // Each look at the clock stands for 50 us: about 130 in all for each peer, three for each segment.
    let beside = stream(design, &log, peers, Duration::from_micros(50));
    assert_eq!(beside.entries, (peers * segments * 64) as u64, "the check itself: everything arrives");
    let looks_per_yield = 40;
    let most = (peers * segments * 4 / looks_per_yield) as u64;
    let least = (peers * segments / looks_per_yield) as u64;
    ensure((least..=most).contains(&beside.yields), || {
        format!("{} yields, {least} to {most} budgets of work", beside.yields)
    })?;
    // Every yield lets the driver run; an echo takes two turns and a timer one.
    ensure(beside.echoes * 4 >= beside.yields, || {
        format!("{} echoes in {} yields: the I/O driver does not run", beside.echoes, beside.yields)
    })?;
    ensure(beside.ticks * 4 >= beside.yields.min(100), || {
        format!("{} ticks in {} yields: the timers do not run", beside.ticks, beside.yields)
    })
}
